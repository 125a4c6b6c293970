// `megalith data train-tokenizer`: trains a byte-level BPE tokenizer. The folder is staged and appears only when it is
// complete.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/cli/data/data_internal.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/config/parser.h"
#include "megalith/data/table/table_reader.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_text.h"
#include "megalith/io/staged_folder.h"
#include "megalith/tokenizer/training/bpe_trainer.h"

namespace megalith::cli {

namespace {

using tokenizer::BpeTrainerOptions;
using tokenizer::PreTokenization;

// The text of --help.
constexpr const char* kDataTrainTokenizerUsage =
    R"(megalith data train-tokenizer FILE… --vocab_size N --output DIR [options]

Trains a byte-level BPE tokenizer and writes the folder that Megalith and transformers read: tokenizer.json,
tokenizer_config.json (with a ChatML chat template), special_tokens_map.json, generation_config.json. Merges are those
of Hugging Face's trainer. A text is a line of a .txt file, the field "text" of a line of a .jsonl file, or the column
"text" of a .csv, .tsv, .parquet or .arrow file.

  --vocab_size N        tokens in all: special ones, 256 bytes and merges
  --output DIR          where the folder goes; it appears when it is complete
  --special_tokens A,B  default <|endoftext|>,<|im_start|>,<|im_end|>; the first one ends texts and pads
  --min_frequency N     pairs that are rarer are not merged (default 2)
  --pre_tokenizer NAME  how texts are cut into words: qwen2 (default) or gpt2
  --text_key NAME       the field or column that holds the text (default text)
  --threads N           threads that count words (default: all cores); the result does not depend on it
  --overwrite           replace DIR if it exists
  --json                print a JSON object that describes the result
)";

// The command's own options; files come before the first of them.
struct TrainFlags {
  std::vector<std::string> files;
  std::optional<std::string> output, special_tokens, pre_tokenizer, text_key;
  std::optional<int64_t> vocab_size, min_frequency, threads;
  bool overwrite = false, json = false, help = false;

  void parse(Words words) {
    const auto first_option =
        std::ranges::find_if(words, [](const std::string& word) { return word.starts_with("--"); });
    files.assign(words.begin(), first_option);
    const std::vector<config::CommandOption> options{{"vocab_size", "tokens in all", &vocab_size},
                                                     {"output", "the folder that is made", &output},
                                                     {"special_tokens", "with commas", &special_tokens},
                                                     {"min_frequency", "rarer pairs are not merged", &min_frequency},
                                                     {"pre_tokenizer", "qwen2 or gpt2", &pre_tokenizer},
                                                     {"text_key", "field or column", &text_key},
                                                     {"threads", "threads that count words", &threads},
                                                     {"overwrite", "replace the folder", &overwrite},
                                                     {"json", "print a JSON object", &json},
                                                     {"help", "print this", &help}};
    config::parse_arguments(config::Dialect::kTrain, words.subspan(files.size()), options).report.check_not_refused();
  }

  // Checked before the corpus is read, which may take minutes.
  void check() const {
    megalith::check<ConfigError>(!files.empty(),
                                 "no texts are given; name files first: megalith data train-tokenizer corpus.txt "
                                 "--vocab_size 32000 --output tokenizer");
    megalith::check<ConfigError>(vocab_size.has_value(),
                                 "--vocab_size is missing: the number of tokens, such as 32000");
    megalith::check<ConfigError>(output.has_value(), "--output is missing: the folder that is made");
    megalith::check<ConfigError>(min_frequency.value_or(0) >= 0, "min_frequency is {}; it must not be negative",
                                 min_frequency.value_or(0));
    megalith::check<ConfigError>(threads.value_or(1) >= 1 && threads.value_or(1) <= 1024,
                                 "threads is {}; it must be from 1 to 1024", threads.value_or(1));
  }

  // qwen2 splits numbers into digits and handles contractions in any case; gpt2 is the original pattern.
  PreTokenization kind() const {
    const std::string name = pre_tokenizer.value_or("qwen2");
    megalith::check<ConfigError>(name == "qwen2" || name == "gpt2", "pre_tokenizer is \"{}\"; it must be qwen2 or gpt2",
                                 name);
    return name == "gpt2" ? PreTokenization::kGpt2 : PreTokenization::kQwen2;
  }

  BpeTrainerOptions options() const {
    BpeTrainerOptions result;
    result.vocab_size = static_cast<int32_t>(std::clamp<int64_t>(*vocab_size, 0, INT32_MAX));
    result.min_frequency = static_cast<uint64_t>(min_frequency.value_or(static_cast<int64_t>(result.min_frequency)));
    if (special_tokens) result.special_tokens = split(*special_tokens, ',');
    // Checks that the vocabulary has room for special tokens and the 256 bytes.
    result.validate();
    return result;
  }

  // hardware_concurrency() may return 0 for "unknown".
  int thread_count() const {
    return static_cast<int>(threads.value_or(std::max(1U, std::thread::hardware_concurrency())));
  }
};

// Texts of one column are counted in blocks, so that a table need not fit into memory. Empty fields are null.
void add_table(const std::string& file, const std::string& column, tokenizer::WordCounter& counter) {
  constexpr size_t kBlockBytes = size_t{32} << 20;
  const auto table = data::open_table(file);
  std::vector<std::string> texts;
  std::string row_text;
  int64_t number = 0;
  size_t bytes = 0;
  while (table->next(row_text, number)) {
    const std::string place = fmt::format("{}:{}", file, number);
    io::Json row = io::parse_json(row_text, place);
    const auto value = row.find(column);
    check<DataError>(value != row.end() && (value->is_string() || value->is_null()),
                     "{}: the column \"{}\" is {}; texts are expected (--text_key names the column)", place, column,
                     value == row.end() ? "missing" : io::json_in_words(*value));
    if (value->is_null()) continue;
    bytes += texts.emplace_back(std::move(value->get_ref<std::string&>())).size();
    if (bytes < kBlockBytes) continue;
    counter.add(texts);
    texts.clear();
    bytes = 0;
  }
  counter.add(texts);
}

}  // namespace

int data_train_tokenizer(Words words) {
  TrainFlags flags;
  flags.parse(words);
  if (flags.help) {
    write_stdout(kDataTrainTokenizerUsage);
    return kDone;
  }
  flags.check();
  const BpeTrainerOptions options = flags.options();
  // Staged first: a folder that cannot be written is reported before the corpus is read.
  io::StagedFolder staged(*flags.output, fmt::format("train-{}", ::getpid()), {.overwrite = flags.overwrite});
  tokenizer::WordCounter counter(flags.kind(), flags.thread_count());
  for (const std::string& file : flags.files) {
    const std::string text_key = flags.text_key.value_or("text");
    if (data::table_format(file))
      add_table(file, text_key, counter);
    else
      counter.add_file(file, text_key);
  }
  check<DataError>(counter.bytes() > 0, "there is no text in {}", list_in_words(flags.files));
  const tokenizer::TrainedBpe model = train_bpe(counter, options);
  // A small corpus runs out of pairs; the tokenizer is still good.
  if (std::ssize(model.tokens) < options.vocab_size)
    log_warning("the corpus gives {} tokens, not {}: no other pair occurs in it {} times", model.tokens.size(),
                options.vocab_size, options.min_frequency);
  for (const auto& [name, content] : tokenizer_files(model)) io::write_text_file(staged.path() / name, content);
  staged.commit();
  const nlohmann::ordered_json report{{"output", *flags.output},
                                      {"vocab_size", model.tokens.size()},
                                      {"merges", model.merges.size()},
                                      {"bytes", counter.bytes()}};
  write_stdout(flags.json ? report.dump() + "\n"
                          : fmt::format("{} tokens ({} merges) from {} bytes of text in {}\n", model.tokens.size(),
                                        model.merges.size(), counter.bytes(), *flags.output));
  return kDone;
}

}  // namespace megalith::cli
