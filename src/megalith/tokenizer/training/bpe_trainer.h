// Makes a tokenizer: byte-level BPE from the words of a corpus, as the trainer of Hugging Face's tokenizers does.
//
//   WordCounter words(PreTokenization::kQwen2, threads);
//   words.add_file("corpus.jsonl");
//   const TrainedBpe model = train_bpe(words, {.vocab_size = 32000});
//   for (const auto& [name, content] : tokenizer_files(model)) … write …
//
// The result depends on the texts and the options alone, not on the order of texts or the number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace megalith::tokenizer {

// How texts are cut into words, and what is done to them before.
enum class PreTokenization {
  kGpt2,   // GPT-2's expression; the text as it is
  kQwen2,  // Qwen2's: digits stand alone, line ends stay with what is before them; NFC
};

// Words of a corpus and how often each stands there.
class WordCounter {
 public:
  // Throws ConfigError when the build has no PCRE2 and utf8proc, which the expressions need.
  WordCounter(PreTokenization kind, int threads);
  ~WordCounter();
  WordCounter(const WordCounter&) = delete;
  WordCounter& operator=(const WordCounter&) = delete;

  // Throws DataError when a text is not valid UTF-8.
  void add(std::span<const std::string> texts);
  // The lines of a file: each with its end one text; of a .jsonl file the field `text_key` of each. Throws DataError,
  // naming file and line, for what cannot be read.
  void add_file(const std::filesystem::path& path, const std::string& text_key = "text");

  PreTokenization kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }  // of all texts
  // In ascending order of their bytes.
  std::vector<std::pair<std::string, uint64_t>> words() const;

 private:
  struct Cutter;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Counts = std::unordered_map<std::string, uint64_t, Hash, std::equal_to<>>;

  PreTokenization kind_;
  std::unique_ptr<Cutter> cutter_;
  std::vector<Counts> counts_;  // one a thread
  uint64_t bytes_ = 0;
};

struct BpeTrainerOptions {
  int32_t vocab_size = 32'000;  // tokens in all: special ones, 256 bytes and merges
  uint64_t min_frequency = 2;   // a pair that stands in the corpus less often is not merged
  // The first one ends texts and pads. With <|im_start|> and <|im_end|> among them the tokenizer gets a chat template.
  std::vector<std::string> special_tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

  // Throws ConfigError for sizes that leave no room and tokens that are empty or twice there.
  void validate() const;
};

struct TrainedBpe {
  PreTokenization kind = PreTokenization::kQwen2;
  std::vector<std::string> special_tokens;          // ids 0, 1, …
  std::vector<std::string> tokens;                  // by id, special ones included; bytes in the byte alphabet
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids, first merge first
};

// Merges the most frequent pair until the vocabulary is full or no pair is frequent enough; of equally frequent ones
// the pair of lower ids.
TrainedBpe train_bpe(const WordCounter& words, const BpeTrainerOptions& options);

// The files of a tokenizer's folder, name and content: tokenizer.json, tokenizer_config.json, special_tokens_map.json
// and, when turns end with another token than texts, generation_config.json.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const TrainedBpe& model);

}  // namespace megalith::tokenizer
