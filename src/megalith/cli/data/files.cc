// `megalith data inspect | verify | merge`: work on pairs of .bin/.idx files, and verify also on the media of datasets.
// Each command collects its facts as JSON first and renders the text from that, so that both outputs agree.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/cli/data/data_internal.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/config/data_config.h"
#include "megalith/data/indexed/indexed_writer.h"
#include "megalith/data/indexed/summary.h"
#include "megalith/run/media/verify_media.h"
#include "megalith/run/signals.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::cli {

namespace {

using data::IndexedDataset;
using nlohmann::ordered_json;
using tokenizer::Tokenizer;

// Texts of --help.
constexpr const char* kInspectUsage =
    R"(megalith data inspect PREFIX: what PREFIX.bin and PREFIX.idx hold

  --tokenizer DIR   show the first tokens as text, too
  --tokens N        how many tokens at the start of a sequence are shown (default: 16)
  --json            print one JSON object in place of a table
)";
constexpr const char* kVerifyUsage =
    R"(megalith data verify PREFIX…: check every rule of the format, and every token
megalith data verify DATASET…: find and decode every image, video and sound of fine-tuning data

A DATASET is a name in dataset_info.json, or a file with records. Each record with a fault is named with its file
and line. Of a PREFIX, the first fault is named with its file and byte. The exit code is then 2.

  --vocab_size N      token ids are below N
  --tokenizer DIR     token ids are those of this tokenizer
  --dataset_dir DIR   folder of dataset_info.json (default: data)
  --media_dir DIR     where relative paths of media are looked up first (default: dataset_dir)
  --json              print one JSON object in place of lines
)";
constexpr const char* kMergeUsage =
    R"(megalith data merge PREFIX… --output PREFIX: the documents of all inputs, concatenated

  --overwrite       replace files that are there
  --json            print one JSON object in place of a line
)";

// Options of the three commands; each offers those that it has.
struct FileFlags {
  std::optional<std::string> tokenizer, output, dataset_dir, media_dir;
  std::optional<int64_t> vocab_size, tokens;
  bool overwrite = false, json = false, help = false;
  std::vector<std::string> prefixes;

  // Parses the words. Returns false if --help was given, after printing it. Every command has --json and --help
  // besides its own options.
  bool read(Words words, std::vector<config::CommandOption> options, const char* usage) {
    options.push_back({"json", "print JSON", &json});
    options.push_back({"help", "print this", &help});
    prefixes = read_data_words(words, options);
    if (help) write_stdout(usage);
    check<ConfigError>(help || !prefixes.empty(), "PREFIX is missing: the files are PREFIX.bin and PREFIX.idx");
    return !help;
  }
};

// Facts that the header and the file sizes give, without reading tokens.
ordered_json facts_of(const IndexedDataset& set) {
  return {{"prefix", set.name()},
          {"type", data::token_type_name(set.token_type())},
          {"sequences", set.sequence_count()},
          {"documents", set.document_count()},
          {"tokens", static_cast<int64_t>(set.bin_bytes()) / data::token_bytes(set.token_type())}};
}

// "corpus: 10 documents, 12 sequences, 3456 tokens (uint16)".
std::string in_words(const ordered_json& facts) {
  return fmt::format("{}: {} documents, {} sequences, {} tokens ({})", facts["prefix"].get<std::string>(),
                     facts["documents"].get<int64_t>(), facts["sequences"].get<int64_t>(),
                     facts["tokens"].get<int64_t>(), facts["type"].get<std::string>());
}

// Returns the first tokens of the first sequences.
ordered_json first_sequences(const IndexedDataset& set, const FileFlags& flags,
                             const std::optional<Tokenizer>& tokenizer) {
  // Enough to recognize the data; more is the task of a viewer.
  constexpr int64_t kShownSequences = 3;
  ordered_json sequences = ordered_json::array();
  for (int64_t i = 0; i < std::min(kShownSequences, set.sequence_count()); ++i) {
    std::vector<int64_t> tokens(static_cast<size_t>(std::min(flags.tokens.value_or(16), set.length(i))));
    set.read(i, 0, tokens);
    ordered_json sequence{{"length", set.length(i)}, {"tokens", tokens}};
    if (tokenizer) sequence["text"] = tokenizer->decode(std::vector<int32_t>(tokens.begin(), tokens.end()));
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

// A histogram of lengths, then the first sequences.
std::string inspect_text(const ordered_json& facts) {
  std::string text = in_words(facts) + "\n\ntokens of a sequence   sequences\n";
  for (const auto& range : facts["lengths"])
    text += fmt::format("{:>9} to {:<9} {:>9}\n", range["from"].get<int64_t>(), range["to"].get<int64_t>(),
                        range["sequences"].get<int64_t>());
  for (size_t i = 0; i < facts["first"].size(); ++i) {
    const auto& sequence = facts["first"][i];
    text += fmt::format("\nsequence {}, {} tokens: {}{}\n", i, sequence["length"].get<int64_t>(),
                        fmt::join(sequence["tokens"].get<std::vector<int64_t>>(), " "),
                        sequence["tokens"].size() < sequence["length"].get<size_t>() ? " …" : "");
    if (sequence.contains("text")) text += sequence["text"].dump() + "\n";
  }
  return text;
}

// Whether a word names fine-tuning data. A pair of files has a name that no other file has.
bool is_dataset(const std::string& word, const FileFlags& flags) {
  if (std::filesystem::exists(data::idx_path(word))) return false;
  return flags.dataset_dir || flags.media_dir || std::filesystem::exists(word);
}

// Prints what was looked at and every fault, and throws if there is one.
int verify_datasets(const FileFlags& flags) {
  check<ConfigError>(!flags.vocab_size && !flags.tokenizer,
                     "--vocab_size and --tokenizer are for pairs of .bin/.idx files; of fine-tuning data the images,"
                     " videos and sounds are verified");
  const std::string folder = flags.dataset_dir.value_or(config::DataConfig{}.dataset_dir);
  const data::RecordSet records(data::find_datasets(flags.prefixes, folder));
  ordered_json verified = ordered_json::array();
  std::string text;
  int64_t faults = 0, looked_at = 0;
  for (size_t i = 0; i < records.datasets().size(); ++i) {
    const std::string& name = records.datasets()[i].name;
    const run::MediaFindings found =
        run::verify_media(records, i, flags.media_dir.value_or(folder),
                          std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
    verified.push_back({{"dataset", name},
                        {"records", found.records},
                        {"images", found.images},
                        {"videos", found.videos},
                        {"sounds", found.sounds},
                        {"faults", found.faults}});
    for (const std::string& fault : found.faults) text += fault + "\n";
    text += fmt::format("{}: {} records, {} images, {} videos, {} sounds: {}\n", name, found.records, found.images,
                        found.videos, found.sounds,
                        found.faults.empty() ? "no fault" : fmt::format("{} with a fault", found.faults.size()));
    faults += std::ssize(found.faults);
    looked_at += found.records;
  }
  write_stdout(flags.json ? ordered_json{{"verified", verified}}.dump() + "\n" : text);
  check<DataError>(faults == 0,
                   "{} of {} records have an image, a video or a sound that cannot be used; mend them, or train with"
                   " skip_broken_media, which leaves such records out",
                   faults, looked_at);
  return kDone;
}

}  // namespace

int data_inspect(Words words) {
  FileFlags flags;
  const std::vector<config::CommandOption> options{{"tokenizer", "folder with the tokenizer's files", &flags.tokenizer},
                                                   {"tokens", "first tokens to show", &flags.tokens}};
  if (!flags.read(words, options, kInspectUsage)) return kDone;
  check<ConfigError>(flags.prefixes.size() == 1, "{} prefixes are given; one is shown at a time",
                     flags.prefixes.size());
  check<ConfigError>(flags.tokens.value_or(0) >= 0, "--tokens is {}; 0 is the least", flags.tokens.value_or(0));
  std::optional<Tokenizer> tokenizer;
  if (flags.tokenizer) tokenizer = Tokenizer::from_folder(*flags.tokenizer);
  // With a tokenizer, ids that it does not have are reported while reading.
  const IndexedDataset set(flags.prefixes[0], tokenizer ? std::optional<int64_t>(tokenizer->id_end()) : std::nullopt);
  const data::IndexedSummary summary = data::summarize(set);
  ordered_json facts = facts_of(set);
  facts["tokens"] = summary.tokens;
  facts["shortest"] = summary.shortest;
  facts["longest"] = summary.longest;
  facts["lengths"] = ordered_json::array();
  for (const auto& range : summary.lengths)
    facts["lengths"].push_back({{"from", range.from}, {"to", range.to}, {"sequences", range.sequences}});
  facts["first"] = first_sequences(set, flags, tokenizer);
  write_stdout(flags.json ? facts.dump() + "\n" : inspect_text(facts));
  return kDone;
}

int data_verify(Words words) {
  FileFlags flags;
  const std::vector<config::CommandOption> options{
      {"tokenizer", "folder with the tokenizer's files", &flags.tokenizer},
      {"vocab_size", "token ids are below it", &flags.vocab_size},
      {"dataset_dir", "folder of dataset_info.json", &flags.dataset_dir},
      {"media_dir", "where relative paths of media are looked up first", &flags.media_dir}};
  if (!flags.read(words, options, kVerifyUsage)) return kDone;
  check<ConfigError>(!flags.vocab_size || *flags.vocab_size >= 1, "--vocab_size is {}; it must be at least 1",
                     flags.vocab_size.value_or(0));
  check<ConfigError>(!flags.vocab_size || !flags.tokenizer, "give --vocab_size or --tokenizer, not both");
  const bool datasets = std::ranges::all_of(flags.prefixes, [&](const auto& word) { return is_dataset(word, flags); });
  if (datasets) return verify_datasets(flags);
  const char* unused = flags.dataset_dir ? "dataset_dir" : flags.media_dir ? "media_dir" : nullptr;
  check<ConfigError>(!unused, "--{} is for fine-tuning data with images or videos, and {} is a pair of .bin/.idx files",
                     unused ? unused : "", flags.prefixes[0]);
  if (flags.tokenizer) flags.vocab_size = Tokenizer::from_folder(*flags.tokenizer).id_end();
  // The first fault is thrown; what was verified before it is not printed then.
  ordered_json checked = ordered_json::array();
  std::string text;
  for (const std::string& prefix : flags.prefixes) {
    const IndexedDataset set(prefix, flags.vocab_size);
    set.check();
    checked.push_back(facts_of(set));
    text += in_words(checked.back()) + ": no fault\n";
  }
  write_stdout(flags.json ? ordered_json{{"verified", checked}}.dump() + "\n" : text);
  return kDone;
}

int data_merge(Words words) {
  FileFlags flags;
  const std::vector<config::CommandOption> options{{"output", "prefix of the files", &flags.output},
                                                   {"overwrite", "replace files that are there", &flags.overwrite}};
  if (!flags.read(words, options, kMergeUsage)) return kDone;
  check<ConfigError>(flags.output.has_value(), "--output is missing: the prefix of the files to write");
  check<ConfigError>(flags.overwrite || !std::filesystem::exists(data::idx_path(*flags.output)),
                     "{} is there; choose another --output, or add --overwrite",
                     data::idx_path(*flags.output).string());
  // Written under temporary names and renamed by commit(), so readers never see half of a merge.
  data::StagedFiles files;
  const run::InterruptGuard guard([&] { files.discard(); });  // Ctrl-C leaves no half-written files
  data::merge_indexed(flags.prefixes, *flags.output, files);
  files.commit();
  const ordered_json facts = facts_of(IndexedDataset(*flags.output));
  write_stdout(flags.json ? facts.dump() + "\n" : in_words(facts) + "\n");
  return kDone;
}

}  // namespace megalith::cli
