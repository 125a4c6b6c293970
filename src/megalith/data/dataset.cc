#include "megalith/data/dataset.h"

#include <utility>

#include "megalith/base/error.h"

namespace megalith::data {
namespace {

// A view: pairs are still read one at a time, and only 8 bytes of scores per pair are kept in memory.
class ScoredPairs : public Dataset {
 public:
  ScoredPairs(std::shared_ptr<const Dataset> pairs, std::vector<ReferenceScores> scores)
      : pairs_(std::move(pairs)), scores_(std::move(scores)) {
    check(std::ssize(scores_) == pairs_->size(), "{} scores for {} pairs", scores_.size(), pairs_->size());
  }
  int64_t size() const override { return pairs_->size(); }
  Sample sample(int64_t index) const override {
    Sample sample = pairs_->sample(index);
    sample.reference = scores_.at(static_cast<size_t>(index));
    return sample;
  }

 private:
  const std::shared_ptr<const Dataset> pairs_;
  const std::vector<ReferenceScores> scores_;
};

}  // namespace

int64_t Dataset::tokens(int64_t index) const {
  const Sample read = sample(index);
  return std::ssize(read.row.ids) + (read.second() != nullptr ? std::ssize(read.second()->ids) : 0);
}

std::shared_ptr<const Dataset> with_reference_scores(std::shared_ptr<const Dataset> pairs,
                                                     std::vector<ReferenceScores> scores) {
  return std::make_shared<ScoredPairs>(std::move(pairs), std::move(scores));
}

}  // namespace megalith::data
