// NaN and infinities in weights, found while they are read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megalith::hf {

// A rectangle of a tensor whose values are not all finite.
struct NonFiniteValues {
  std::string tensor;           // its name in the files
  std::string file;             // the file that holds it
  std::vector<int64_t> offset;  // where the rectangle begins in the tensor
  int64_t count = 0;            // values that are NaN or infinite
  // The file's values are finite, but too large for the type that they are read into, which this names ("Half"). Empty
  // if the file itself has NaN or infinities.
  std::string too_large_for;
};

}  // namespace megalith::hf
