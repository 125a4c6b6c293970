// Dataset: numbered samples.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

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

// The same pairs with what a reference model gave them, one for each.
std::shared_ptr<const Dataset> with_reference_scores(std::shared_ptr<const Dataset> pairs,
                                                     std::vector<ReferenceScores> scores);

}  // namespace megalith::data
