// Dataset: numbered samples.
#pragma once

#include <cstdint>

#include "megalith/data/sample.h"

namespace megalith::data {

// Immutable; all functions may be called from any number of threads, and give the same on every rank.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Requires 0 <= index < size().
  virtual Sample sample(int64_t index) const = 0;
};

}  // namespace megalith::data
