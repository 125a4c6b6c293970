// Which files pre-training reads, and the words that options say it with. run::data_sources reads the options.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace megalith::data {

inline constexpr size_t kSplits = 3;
inline constexpr std::array<const char*, kSplits> kSplitNames{"train", "valid", "test"};

template <typename T>
using PerSplit = std::array<T, kSplits>;

struct Blend {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;  // one a prefix, positive; empty: by length
  bool operator==(const Blend&) const = default;
};

// Words are alternating weights and prefixes when they are even in number and every other one is a number, else
// prefixes. Throws ConfigError naming `option` for no words, weights that are not positive, and a mixture.
Blend parse_blend(std::span<const std::string> words, const std::string& option);

// Which part of the sequences belongs to which split, as fractions; nothing for a split without any.
using SplitBounds = PerSplit<std::optional<std::pair<double, double>>>;
// "969, 30, 1": up to three numbers, missing ones are 0. Throws ConfigError for others, and when all are 0.
SplitBounds parse_split(const std::string& text);
// The sequences [first, second) of `count` that a part covers.
std::pair<int64_t, int64_t> sequences_of(const std::pair<double, double>& bounds, int64_t count);

// Exactly one of `all`, `by_split` and `mock`.
struct DataSources {
  std::optional<Blend> all;                 // each prefix is cut into three,
  std::string split = "969, 30, 1";         // as parse_split reads it
  PerSplit<std::optional<Blend>> by_split;  // absent: no data of that split
  bool mock = false;                        // MockSequences (pretrain_datasets.h) in three equal parts

  // Throws ConfigError, naming the options, when there is not exactly one.
  void validate() const;
};

}  // namespace megalith::data
