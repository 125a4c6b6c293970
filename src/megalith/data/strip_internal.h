// Strip: the part of a row that becomes one sequence of a micro-batch.
#pragma once

#include <cstdint>

#include "megalith/data/sample.h"

namespace megalith::data {

// One sequence of the layout: tokens [begin, begin + tokens) of a row. A row whose pieces do not attend to one another
// gives one strip per piece; every other row gives one.
struct Strip {
  const Sequence* row = nullptr;
  int64_t begin = 0;
  int64_t tokens = 0;
  int64_t length = 0;  // in the micro-batch, including padding

  // Returns the start of its labels in the row. Unless the row is shifted, token i predicts label i + 1.
  int64_t label_begin() const { return begin + (row->shifted ? 0 : 1); }
};

}  // namespace megalith::data
