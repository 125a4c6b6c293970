// Counts words with several threads. Each thread has its own table, so counting needs no locks; the tables are added up
// once at the end. Files are read in blocks, so that a corpus need not fit into memory.
#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/tokenizer/regex/regex_internal.h"
#include "megalith/tokenizer/steps/normalizer_internal.h"
#include "megalith/tokenizer/steps/pre_tokenizer_internal.h"
#include "megalith/tokenizer/text/unicode_internal.h"
#include "megalith/tokenizer/text/utf8.h"
#include "megalith/tokenizer/training/bpe_style_internal.h"

namespace megalith::tokenizer {

namespace {

constexpr size_t kBlockBytes = size_t{32} << 20;  // texts that are read before their words are counted

// The expressions of the published GPT-2 and Qwen2 tokenizers. GPT-2's takes a run of digits as a word, Qwen2's each
// digit alone, and Qwen2's lets any one character stand before a word.
constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// {"text": "…"} -> the text.
std::string text_of_line(const std::string& line, const std::string& text_key) {
  const auto value = nlohmann::json::parse(line);
  check<DataError>(value.is_object(), "the line is a {}; an object is expected", value.type_name());
  const auto text = value.find(text_key);
  check<DataError>(text != value.end() && text->is_string(), "the field \"{}\" is {}; a string is expected", text_key,
                   text == value.end() ? "missing" : std::string("a ") + text->type_name());
  return text->get<std::string>();
}

}  // namespace

nlohmann::ordered_json normalizer_json(PreTokenization kind) {
  if (kind == PreTokenization::kGpt2) return nullptr;
  return {{"type", "NFC"}};
}

// Split by the expression, then bytes as characters: the pair of steps that Qwen2's own file has.
nlohmann::ordered_json pre_tokenizer_json(PreTokenization kind) {
  using nlohmann::ordered_json;
  const ordered_json split{{"type", "Split"},
                           {"pattern", {{"Regex", kind == PreTokenization::kGpt2 ? kGpt2Pattern : kQwen2Pattern}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const ordered_json bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, bytes})}};
}

// Cuts texts into words with the same steps that the finished tokenizer will use. Immutable.
struct WordCounter::Cutter {
  explicit Cutter(PreTokenization kind) {
    require_regex("training a tokenizer");
    require_unicode("training a tokenizer");
    const nlohmann::json cut = pre_tokenizer_json(kind), normal = normalizer_json(kind);
    pre_tokenizer = read_pre_tokenizer(JsonNode(cut, "pre_tokenizer"));
    pre_tokenizer->leave_bytes();
    if (!normal.is_null()) normalizer = read_normalizer(JsonNode(normal, "normalizer"));
  }

  // A word is looked up as a view first; only a new one is copied into the table.
  void count(const std::string& text, Counts& counts) const {
    require_valid_utf8(text);
    std::string normalized;
    if (normalizer) {
      normalized = text;
      normalizer->apply(normalized);
    }
    Pieces pieces;
    pieces.reset(normalizer ? normalized : text, true);
    pre_tokenizer->apply(pieces);
    for (const Span& span : pieces.spans()) {
      const std::string_view word = pieces.view(span);
      const auto found = counts.find(word);
      if (found == counts.end())
        counts.emplace(std::string(word), 1);
      else
        ++found->second;
    }
  }

  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
};

WordCounter::WordCounter(PreTokenization kind, int threads) : kind_(kind), cutter_(std::make_unique<Cutter>(kind)) {
  check<ConfigError>(threads >= 1, "words cannot be counted by {} threads; at least 1 is needed", threads);
  counts_.resize(static_cast<size_t>(threads));
}

WordCounter::~WordCounter() = default;

// Texts are taken in runs from a shared counter; the order in which threads get them does not matter for sums.
void WordCounter::add(std::span<const std::string> texts) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  // A thread that fails stops; the others finish their runs, and the exception is thrown on the caller's thread.
  std::exception_ptr error;  // the first one; guarded by mutex
  const auto work = [&](Counts& counts) {
    constexpr size_t kRun = 64;  // texts at a time, because lines are short
    for (size_t begin = next.fetch_add(kRun); begin < texts.size(); begin = next.fetch_add(kRun)) {
      try {
        for (size_t i = begin; i < std::min(begin + kRun, texts.size()); ++i) cutter_->count(texts[i], counts);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        return;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < counts_.size(); ++i) others.emplace_back([&, i] { work(counts_[i]); });
    work(counts_[0]);
  }
  if (error) std::rethrow_exception(error);
  for (const std::string& text : texts) bytes_ += text.size();
}

// A text file is trained with its newlines, a .jsonl file with the texts in it; empty lines of the latter are skipped.
void WordCounter::add_file(const std::filesystem::path& path, const std::string& text_key) {
  std::ifstream file(path, std::ios::binary);
  check<DataError>(file.is_open(), "{} cannot be opened; it should contain texts to train on", path.string());
  // The rest of a file's lines wait in `texts` until there are enough bytes to keep all threads busy.
  const bool is_jsonl = path.extension() == ".jsonl";
  std::vector<std::string> texts;
  std::string line;
  size_t number = 0, block_bytes = 0;
  std::error_code unknown;  // a pipe has no size: then the bytes that were counted are all there is to say
  const auto file_bytes = std::filesystem::file_size(path, unknown);
  TaskProgress progress("counting words of " + path.filename().string(), TaskProgress::Unit::kBytes,
                        unknown ? 0 : static_cast<int64_t>(file_bytes));
  const auto count = [&] {
    add(texts);
    if (file.good()) progress.set(file.tellg());
    texts.clear();
    block_bytes = 0;
  };
  while (std::getline(file, line)) {
    ++number;
    try {
      if (is_jsonl && line.find_first_not_of(" \t\r") == std::string::npos) continue;
      if (!is_jsonl && !file.eof()) line += '\n';
      texts.push_back(is_jsonl ? text_of_line(line, text_key) : line);
      require_valid_utf8(texts.back());
    } catch (const std::exception& error) {
      throw DataError(fmt::format("{}:{}: {}", path.string(), number, error.what()));
    }
    block_bytes += texts.back().size();
    if (block_bytes >= kBlockBytes) count();
  }
  check<DataError>(!file.bad(), "{} cannot be read to its end", path.string());
  count();
}

// Sorted, so that the number of threads and the order of texts do not show in the result.
std::vector<std::pair<std::string, uint64_t>> WordCounter::words() const {
  Counts all;
  for (const Counts& counts : counts_)
    for (const auto& [word, count] : counts) all[word] += count;
  std::vector<std::pair<std::string, uint64_t>> result(all.begin(), all.end());
  std::ranges::sort(result);
  return result;
}

}  // namespace megalith::tokenizer
