// Which files pre-training reads, from the words of the data options.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megalith/config/data_config.h"

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

// Exactly one of the three.
struct DataSources {
  std::optional<Blend> all;  // to be split
  PerSplit<std::optional<Blend>> by_split;
  bool mock = false;
};

// Reads data_args_path and per_split_data_args_path, too. Throws ConfigError when there is not exactly one source,
// DataError when a file is not what it should be.
DataSources read_data_sources(const config::IndexedDataConfig& config);

}  // namespace megalith::data
