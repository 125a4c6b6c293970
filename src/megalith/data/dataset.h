// Dataset: samples with random access by number.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megalith/data/sample.h"

namespace megalith::data {

// Immutable and thread-safe. All functions return the same on every rank. Samples may be made on the fly; sample() is
// called from loader threads, so it should not be slow by accident.
class Dataset {
 public:
  virtual ~Dataset() = default;
  // Returns the number of samples.
  virtual int64_t size() const = 0;
  // Requires 0 <= index < size().
  virtual Sample sample(int64_t index) const = 0;
  // Returns the number of tokens of a sample, of both rows of a pair. Datasets that know it without reading the sample
  // override this: lengths of all samples are asked for with group_by_length.
  virtual int64_t tokens(int64_t index) const;
};

// Returns the same samples of two rows (preference pairs, answers with verdicts) with the scores of a reference model,
// one entry per sample.
std::shared_ptr<const Dataset> with_reference_scores(std::shared_ptr<const Dataset> pairs,
                                                     std::vector<ReferenceScores> scores);

}  // namespace megalith::data
