// The names and sizes of block scales (block_scales.h), for descriptions of models and files.
#pragma once

#include <cstdint>
#include <string>

namespace megalith::hf {

// The elements of a weight that share a scale.
struct ScaleBlock {
  int64_t rows = 128;
  int64_t columns = 128;
  bool operator==(const ScaleBlock&) const = default;
};

// Returns the name of the scales of a weight.
inline std::string block_scale_name(const std::string& weight) { return weight + "_scale_inv"; }

}  // namespace megalith::hf
