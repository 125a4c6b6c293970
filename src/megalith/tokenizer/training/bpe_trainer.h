// Trains a tokenizer: byte-level BPE from the words of a corpus, like the trainer of Hugging Face's tokenizers.
//
//   WordCounter words(PreTokenization::kQwen2, threads);
//   words.add_file("corpus.jsonl");
//   const TrainedBpe model = train_bpe(words, {.vocab_size = 32000});
//   for (const auto& [name, content] : tokenizer_files(model)) … write …
//
// The result depends only on the texts and the options, not on the order of texts or the number of threads.
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
  kGpt2,   // GPT-2's expression; texts are unchanged
  kQwen2,  // Qwen2's: digits are separate, newlines stay with what is before them; NFC
};

// Counts the words of a corpus.
class WordCounter {
 public:
  // Throws ConfigError when the build has no PCRE2 and utf8proc, which the expressions need.
  WordCounter(PreTokenization kind, int threads);
  ~WordCounter();
  WordCounter(const WordCounter&) = delete;
  WordCounter& operator=(const WordCounter&) = delete;

  // Counts the words of `texts` with all threads; returns when they are counted. Throws DataError when a text is not
  // valid UTF-8.
  void add(std::span<const std::string> texts);
  // Adds the lines of a file, each with its end as one text; of a .jsonl file the field `text_key` of each line. Throws
  // DataError, naming file and line, for anything that cannot be read. Says on stderr how far it is when it takes long.
  void add_file(const std::filesystem::path& path, const std::string& text_key = "text");

  // The way in which words are cut, and the size of the corpus.
  PreTokenization kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }  // bytes of all texts added so far
  // Returns the words and their counts, ordered by their bytes.
  std::vector<std::pair<std::string, uint64_t>> words() const;

 private:
  // The steps that cut texts, shared by all threads.
  struct Cutter;
  // Lets the table be searched with a string_view, without a copy of the word.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Counts = std::unordered_map<std::string, uint64_t, Hash, std::equal_to<>>;

  PreTokenization kind_;
  std::unique_ptr<Cutter> cutter_;
  // Added up by words().
  std::vector<Counts> counts_;  // one per thread
  uint64_t bytes_ = 0;
};

// Parameters of the training.
struct BpeTrainerOptions {
  int32_t vocab_size = 32'000;  // in total: special tokens, 256 bytes and merges
  uint64_t min_frequency = 2;   // rarer pairs are not merged
  // The first one ends and pads texts. If <|im_start|> and <|im_end|> are among them, the tokenizer gets a chat
  // template.
  std::vector<std::string> special_tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

  // Throws ConfigError for sizes that leave no room, and for tokens that are empty or repeated.
  void validate() const;
};

// A trained vocabulary with its merges.
struct TrainedBpe {
  PreTokenization kind = PreTokenization::kQwen2;
  std::vector<std::string> special_tokens;          // ids 0, 1, …
  std::vector<std::string> tokens;                  // by id, including special ones; bytes in the byte alphabet
  std::vector<std::pair<int32_t, int32_t>> merges;  // pairs of ids, in the order of merging
};

// Merges the most frequent pair until the vocabulary is full or no pair is frequent enough; of equally frequent pairs,
// the one with the lower ids first.
// Throws like BpeTrainerOptions::validate. The vocabulary may be smaller than asked for, if the corpus is small.
// Says on stderr how far it is when it takes long.
TrainedBpe train_bpe(const WordCounter& words, const BpeTrainerOptions& options);

// Returns names and contents of the files of a tokenizer's folder: tokenizer.json, tokenizer_config.json,
// special_tokens_map.json and, if turns end with another token than texts, generation_config.json.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const TrainedBpe& model);

}  // namespace megalith::tokenizer
