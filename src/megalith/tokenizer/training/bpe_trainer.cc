// BPE training, incrementally. Words are counted once; each distinct word is a row of symbols with its count. A merge
// visits only the words that contain the pair and updates the counts of the neighboring pairs, so its cost is that of
// the changed places, not of the corpus.
//
// The next pair comes from a priority queue whose counts may be outdated: counts only shrink between insertions, so an
// entry whose count no longer fits is put back with the right one. Ties go to the lower ids, which makes the result
// independent of the order of texts.
#include "megalith/tokenizer/training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <queue>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/tokenizer/text/byte_alphabet_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

constexpr int32_t kBytes = 256;
// A bound on mistakes (a number of bytes given as a vocabulary), far above any real vocabulary.
constexpr int32_t kMaxVocabulary = 10'000'000;

using Pair = uint64_t;  // two ids in one number

Pair pair_of(int32_t a, int32_t b) { return static_cast<Pair>(a) << 32 | static_cast<uint32_t>(b); }
int32_t first_of(Pair pair) { return static_cast<int32_t>(pair >> 32); }
int32_t second_of(Pair pair) { return static_cast<int32_t>(pair & 0xFFFFFFFF); }

// A pair that may be merged next. Its count may have shrunk since; it is compared when its turn comes.
struct Candidate {
  Pair pair;
  int64_t count;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

// The corpus as symbols, word by word, and the words that contain each pair.
class WordMerger {
 public:
  WordMerger(const std::vector<std::pair<std::string, uint64_t>>& words, const std::array<int32_t, kBytes>& byte_ids) {
    // All words in one array: merging shortens a word in place and never moves another.
    size_t symbols = 0;
    for (const auto& [word, count] : words) symbols += word.size();
    symbols_.reserve(symbols);
    for (const auto& [word, count] : words) {
      words_.push_back({symbols_.size(), static_cast<uint32_t>(word.size()), static_cast<int64_t>(count)});
      for (const char c : word) symbols_.push_back(byte_ids[static_cast<unsigned char>(c)]);
    }
    for (size_t i = 0; i < words_.size(); ++i) {
      const Word& word = words_[i];
      for (size_t at = word.begin; at + 1 < word.begin + word.size; ++at)
        change(pair_of(symbols_[at], symbols_[at + 1]), static_cast<uint32_t>(i), word.count);
    }
    queue_new_pairs();
  }

  // Returns the pair to merge next; std::nullopt if none occurs `min_frequency` times.
  std::optional<Pair> next(uint64_t min_frequency) {
    while (!queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = counts_[top.pair];
      if (count != top.count) {
        top.count = count;
        queue_.push(top);
        continue;
      }
      if (count < 1 || static_cast<uint64_t>(count) < min_frequency) return std::nullopt;
      return top.pair;
    }
    return std::nullopt;
  }

  // Replaces the pair by `merged` in all words.
  void merge(Pair pair, int32_t merged) {
    const auto places = places_.extract(pair);
    if (places.empty()) return;
    for (const uint32_t word : places.mapped()) merge_in(word, pair, merged);
    queue_new_pairs();
  }

 private:
  struct Word {
    size_t begin;  // index into symbols_
    uint32_t size;
    int64_t count;
  };

  // Counts a pair in a word up or down; new occurrences are noted for the queue.
  void change(Pair pair, uint32_t word, int64_t by) {
    counts_[pair] += by;
    if (by <= 0) return;
    // Occurrences in one word come in a row, so comparing with the last entry suffices to list it once.
    std::vector<uint32_t>& places = new_places_[pair];
    if (places.empty() || places.back() != word) places.push_back(word);
  }

  // Rewrites the word in place, from left to right. For x a b y with (a b) -> m, the pairs (x a) and (b y) lose the
  // word's count, and (x m) and (m y) gain it. A run a b a b first counts (m a) and then replaces it by (m m).
  void merge_in(uint32_t number, Pair pair, int32_t merged) {
    Word& word = words_[number];
    int32_t* symbols = &symbols_[word.begin];
    const int32_t a = first_of(pair), b = second_of(pair);
    uint32_t to = 0;  // symbols before it are final
    for (uint32_t at = 0; at < word.size; ++to) {
      if (at + 1 >= word.size || symbols[at] != a || symbols[at + 1] != b) {
        symbols[to] = symbols[at++];
        continue;
      }
      at += 2;
      if (to > 0) {
        change(pair_of(symbols[to - 1], a), number, -word.count);
        change(pair_of(symbols[to - 1], merged), number, word.count);
      }
      if (at < word.size) {
        change(pair_of(b, symbols[at]), number, -word.count);
        change(pair_of(merged, symbols[at]), number, word.count);
      }
      symbols[to] = merged;
    }
    word.size = to;
  }

  void queue_new_pairs() {
    for (auto& [pair, places] : new_places_) {
      const int64_t count = counts_[pair];
      if (count <= 0) continue;
      queue_.push({pair, count});
      std::vector<uint32_t>& all = places_[pair];
      all.insert(all.end(), places.begin(), places.end());
      std::ranges::sort(all);
      const auto repeats = std::ranges::unique(all);
      all.erase(repeats.begin(), repeats.end());
    }
    new_places_.clear();
  }

  std::vector<Word> words_;
  std::vector<int32_t> symbols_;
  std::unordered_map<Pair, int64_t> counts_;
  std::unordered_map<Pair, std::vector<uint32_t>> places_;      // words that contain or contained the pair
  std::unordered_map<Pair, std::vector<uint32_t>> new_places_;  // occurrences that the merge in progress has made
  std::priority_queue<Candidate> queue_;
};

}  // namespace

void BpeTrainerOptions::validate() const {
  for (size_t i = 0; i < special_tokens.size(); ++i) {
    const std::string& token = special_tokens[i];
    check<ConfigError>(!token.empty() && !first_invalid_utf8(token),
                       "special token {} is empty or not valid UTF-8; use texts such as <|endoftext|>", i);
    check<ConfigError>(std::ranges::count(special_tokens, token) == 1, "the special token {} is given twice", token);
    // Characters of the alphabet have one or two bytes.
    const bool is_byte = token.size() <= 2 && bytes_of_characters(token).value_or("").size() == 1;
    check<ConfigError>(!is_byte, "the special token {} already stands for a byte; use a longer name", token);
  }
  check<ConfigError>(!special_tokens.empty(), "at least one special token is needed, to end and pad texts");
  const auto least = static_cast<int64_t>(special_tokens.size()) + kBytes;
  check<ConfigError>(vocab_size >= least && vocab_size <= kMaxVocabulary,
                     "vocab_size is {}; it must be from {} ({} special tokens and {} bytes) to {}", vocab_size, least,
                     special_tokens.size(), kBytes, kMaxVocabulary);
}

TrainedBpe train_bpe(const WordCounter& words, const BpeTrainerOptions& options) {
  options.validate();
  TrainedBpe model{words.kind(), options.special_tokens, options.special_tokens, {}};
  // Bytes are ordered by the characters that stand for them, as in tokenizers.
  std::map<char32_t, unsigned char> alphabet;
  for (int byte = 0; byte < kBytes; ++byte)
    alphabet[code_point_at(character_of_byte(static_cast<unsigned char>(byte)), 0)] = static_cast<unsigned char>(byte);
  std::array<int32_t, kBytes> byte_ids{};
  for (const auto& [character, byte] : alphabet) {
    byte_ids[byte] = static_cast<int32_t>(model.tokens.size());
    model.tokens.emplace_back(character_of_byte(byte));
  }
  // By text: (ab c) and (a bc) both make abc, which must get one id.
  std::unordered_map<std::string, int32_t> ids;
  for (size_t id = 0; id < model.tokens.size(); ++id) ids.emplace(model.tokens[id], static_cast<int32_t>(id));

  const auto begun = std::ssize(model.tokens);
  TaskProgress progress("merging", TaskProgress::Unit::kCount, options.vocab_size - begun, "tokens");
  WordMerger merger(words.words(), byte_ids);
  while (std::ssize(model.tokens) < options.vocab_size) {
    const auto pair = merger.next(options.min_frequency);
    if (!pair) break;
    // Different merges may spell the same token.
    const std::string token =
        model.tokens[static_cast<size_t>(first_of(*pair))] + model.tokens[static_cast<size_t>(second_of(*pair))];
    const auto [place, is_new] = ids.emplace(token, static_cast<int32_t>(model.tokens.size()));
    if (is_new) model.tokens.push_back(token);
    model.merges.emplace_back(first_of(*pair), second_of(*pair));
    merger.merge(*pair, place->second);
    progress.set(std::ssize(model.tokens) - begun);
  }
  return model;
}

}  // namespace megalith::tokenizer
