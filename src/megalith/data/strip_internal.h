// Strip: where a part of a row stands in a micro-batch.
#pragma once

#include <cstdint>

#include "megalith/data/sample.h"

namespace megalith::data {

// One sequence of the layout: tokens [begin, begin + tokens) of a row.
struct Strip {
  const Sequence* row = nullptr;
  int64_t begin = 0;
  int64_t tokens = 0;
  int64_t length = 0;  // with padding

  // Where its labels begin in the row. Unless shifted, they stand one to the right of their place in the micro-batch.
  int64_t label_begin() const { return begin + (row->shifted ? 0 : 1); }
};

}  // namespace megalith::data
