// The data of a pre-training run: how many samples it needs, and datasets as the trainer reads them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "megalith/data/collator.h"
#include "megalith/data/dataset.h"
#include "megalith/data/gpt/pretrain_datasets.h"
#include "megalith/run/run_context.h"

namespace megalith::run {

// The result of a dataset provider, the same on all ranks. A split that is nullptr is not used.
struct ProvidedDatasets {
  std::shared_ptr<const data::Dataset> train, valid, test;
};

// Returns the samples that a run needs, by Megatron's rule. Train: train_samples or iterations · batch; valid:
// (iterations / eval_interval + 1) · eval_iters · evaluation batch; test: eval_iters · evaluation batch.
data::PerSplit<int64_t> samples_needed(const RunSettings& run, const layout::MicrobatchCalculator& batches);
// Returns the samples of one evaluation.
int64_t samples_of_evaluation(const PretrainSettings& settings);

// Returns samples of .bin/.idx files or mock data (data/gpt). Throws ConfigError unless reset_position_ids and
// reset_attention_mask are equal: sequences that do not see one another count their positions from 0.
ProvidedDatasets gpt_datasets(const RunContext& run, const data::PerSplit<int64_t>& samples);

// The samples of the current evaluation. Each evaluation begins where the previous one ended (Megatron's
// consumed_valid_samples) and wraps around at the end of the data. The rank's thread calls advance() between
// evaluations.
class EvaluationWindow : public data::Dataset {
 public:
  // `samples` is limited to the size of `all`.
  EvaluationWindow(std::shared_ptr<const data::Dataset> all, int64_t samples);

  int64_t size() const override { return samples_; }
  data::Sample sample(int64_t index) const override { return all_->sample((begin_ + index) % all_->size()); }
  void advance() { begin_ += samples_; }  // moves on to the samples of the next evaluation

 private:
  const std::shared_ptr<const data::Dataset> all_;
  const int64_t samples_;
  int64_t begin_ = 0;
};

}  // namespace megalith::run
