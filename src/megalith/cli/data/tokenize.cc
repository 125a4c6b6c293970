// `megalith data tokenize`: converts JSON lines and tables to .bin/.idx files. Output goes to temporary files that are
// renamed at the end; a signal discards them (InterruptGuard), so a pair of files is either complete or absent.
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/task_progress.h"
#include "megalith/base/text.h"
#include "megalith/cli/data/data_internal.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/data/corpus/tokenize_corpus.h"
#include "megalith/data/indexed/indexed_dataset.h"
#include "megalith/run/signals.h"

namespace megalith::cli {

namespace {

using Clock = std::chrono::steady_clock;

// The text of --help.
constexpr const char* kDataTokenizeUsage =
    R"(megalith data tokenize FILE… --tokenizer DIR --output PREFIX: JSON lines or tables into .bin/.idx files

Every line of a file is a JSON object and becomes a document; FILE may be compressed (gzip, Zstandard), and - is stdin.
So does every row of a .csv, .tsv, .parquet or .arrow file, whose columns are the fields. The files PREFIX_KEY_document.bin and .idx are those of Megatron's preprocess_data.py, byte for byte.

  --json_keys KEYS      fields to tokenize, with commas between them (default: text); a list of strings makes several
                        sequences of one document
  --append_eod          append the tokenizer's EOS token to every document that is not empty
  --add_special_tokens  add the special tokens that the tokenizer is configured to add to each text (BOS, for example)
  --workers N           threads (default: one per processor); the result does not depend on it
  --skip_bad_lines      leave out lines that cannot be read, and count them, instead of stopping at the first
  --overwrite           replace files that are there
  --json                print one JSON object in place of a table
)";

// The command's own options.
struct DataTokenizeFlags {
  std::optional<std::string> tokenizer, output, json_keys;
  std::optional<int64_t> workers;
  bool append_eod = false, add_special_tokens = false, skip_bad_lines = false, overwrite = false, json = false,
       help = false;

  std::vector<config::CommandOption> options() {
    return {{"tokenizer", "folder with the tokenizer's files", &tokenizer},
            {"output", "prefix of the files", &output},
            {"json_keys", "fields to tokenize", &json_keys},
            {"workers", "threads", &workers},
            {"append_eod", "append EOS to every document", &append_eod},
            {"add_special_tokens", "add the tokenizer's own special tokens", &add_special_tokens},
            {"skip_bad_lines", "count bad lines", &skip_bad_lines},
            {"overwrite", "replace files that are there", &overwrite},
            {"json", "print JSON", &json},
            {"help", "print this", &help}};
  }

  // Checks the flags, and turns them into options of module `data`.
  data::TokenizeCorpusOptions corpus_options(std::vector<std::string> inputs) const {
    check<ConfigError>(tokenizer.has_value(), "--tokenizer is missing: the folder of a model, with its tokenizer.json");
    check<ConfigError>(output.has_value() && !output->empty(), "--output is missing: the prefix of the files to write");
    check<ConfigError>(!workers || (*workers >= 1 && *workers <= 1024), "--workers is {}; it must be from 1 to 1024",
                       workers.value_or(0));
    const int threads = static_cast<int>(workers.value_or(std::max(1U, std::thread::hardware_concurrency())));
    return {.inputs = std::move(inputs),
            .output = *output,
            .json_keys = split(json_keys.value_or("text"), ','),
            .append_eod = append_eod,
            .add_special_tokens = add_special_tokens,
            .skip_bad_lines = skip_bad_lines,
            .workers = threads};
  }
};

// Returns the bytes of all inputs; 0 if they cannot be known before they are read.
int64_t bytes_of(const std::vector<std::string>& inputs) {
  int64_t bytes = 0;
  for (const std::string& input : inputs) {
    const std::filesystem::path path(input);
    const std::string kind = path.extension().string();
    std::error_code failed;
    const auto size = std::filesystem::file_size(path, failed);
    if (failed || kind == ".gz" || kind == ".zst" || kind == ".parquet" || kind == ".arrow") return 0;
    bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// Refuses to replace existing files before any work is done.
void check_absent(const data::TokenizeCorpusOptions& options) {
  for (const std::string& key : options.json_keys) {
    const auto path = data::idx_path(fmt::format("{}_{}_document", options.output, key));
    check<ConfigError>(!std::filesystem::exists(path), "{} is there; choose another --output, or add --overwrite",
                       path.string());
  }
}

// `seconds` is the only field that differs between two runs on the same data.
std::string as_json(const data::TokenizeCorpusResult& result, double seconds) {
  nlohmann::ordered_json object{{"outputs", nlohmann::ordered_json::array()},
                                {"documents", result.total.documents},
                                {"tokens", result.total.tokens},
                                {"input_bytes", result.total.input_bytes},
                                {"bad_lines", result.total.bad_lines},
                                {"seconds", seconds}};
  for (const auto& output : result.outputs)
    object["outputs"].push_back({{"key", output.key},
                                 {"prefix", output.prefix},
                                 {"type", data::token_type_name(output.type)},
                                 {"documents", output.documents},
                                 {"sequences", output.sequences},
                                 {"tokens", output.tokens}});
  return object.dump() + "\n";
}

// One line per field, in the order of --json_keys.
std::string as_text(const data::TokenizeCorpusResult& result) {
  std::string text;
  for (const auto& output : result.outputs)
    text += fmt::format("{}: {} documents, {} sequences, {} tokens ({})\n", output.prefix, output.documents,
                        output.sequences, output.tokens, data::token_type_name(output.type));
  return text;
}

}  // namespace

int data_tokenize(Words words) {
  DataTokenizeFlags flags;
  std::vector<std::string> inputs = read_data_words(words, flags.options());
  if (flags.help) {
    write_stdout(kDataTokenizeUsage);
    return kDone;
  }
  const data::TokenizeCorpusOptions options = flags.corpus_options(std::move(inputs));
  if (!flags.overwrite) check_absent(options);
  const auto tokenizer = tokenizer::Tokenizer::from_folder(*flags.tokenizer);
  data::StagedFiles files;
  const run::InterruptGuard guard([&] { files.discard(); });
  const auto start = Clock::now();
  const auto result = [&] {
    TaskProgress progress("tokenizing", TaskProgress::Unit::kBytes, bytes_of(options.inputs));
    return data::tokenize_corpus(tokenizer, options, files, [&](const auto& p) { progress.set(p.input_bytes); });
  }();
  // From here on the files have their names; only reports follow.
  files.commit();
  for (const std::string& message : result.bad_line_messages) log_warning("left out: {}", message);
  if (result.total.bad_lines > 0) log_warning("{} bad lines were left out", result.total.bad_lines);
  write_stdout(flags.json ? as_json(result, std::chrono::duration<double>(Clock::now() - start).count())
                          : as_text(result));
  return kDone;
}

}  // namespace megalith::cli
