// DataSources: the files that pre-training reads, and the parsers of the options that name them. run::data_sources
// reads the options.
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

// Several prefixes of .bin/.idx files and their weights. A prefix is a path without its ending.
struct Blend {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;  // one per prefix, positive; std::nullopt: in proportion to their lengths
  bool operator==(const Blend&) const = default;
};

// Parses weights and prefixes in turn, if the number of words is even and every other word is a number; otherwise
// prefixes only. Throws a ConfigError that names `option` for no words, a weight that is not positive, or a mixture.
Blend parse_blend(std::span<const std::string> words, const std::string& option);

// The range of sequences of each split, as fractions of all; std::nullopt for a split without sequences.
using SplitBounds = PerSplit<std::optional<std::pair<double, double>>>;
// Parses "969, 30, 1": up to three numbers >= 0; missing ones are 0. Throws a ConfigError for anything else, and if all
// are 0.
SplitBounds parse_split(const std::string& text);
// Returns the sequences [first, second) of `count` that the bounds cover.
std::pair<int64_t, int64_t> sequences_of(const std::pair<double, double>& bounds, int64_t count);

// Exactly one of `all`, `by_split` and `mock` is set. `mock` needs no files; it is for benchmarks.
struct DataSources {
  std::optional<Blend> all;                 // each prefix is divided into three splits
  std::string split = "969, 30, 1";         // how `all` is divided (parse_split)
  PerSplit<std::optional<Blend>> by_split;  // std::nullopt: no data for that split
  bool mock = false;                        // MockSequences (pretrain_datasets.h) in three equal parts

  // Throws a ConfigError that names the options unless exactly one is set.
  void validate() const;
};

}  // namespace megalith::data
