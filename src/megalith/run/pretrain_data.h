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

// What a dataset provider gives; a split that is not there is not trained, evaluated or tested on. The same on all
// ranks.
struct ProvidedDatasets {
  std::shared_ptr<const data::Dataset> train, valid, test;
};

// Samples of train, valid and test, by Megatron's rule: train_samples or iterations · batch; (iterations /
// eval_interval + 1) · eval_iters · evaluation batch; eval_iters · evaluation batch.
data::PerSplit<int64_t> samples_needed(const RunSettings& run, const layout::MicrobatchCalculator& batches);
// Samples of one evaluation.
int64_t samples_of_evaluation(const PretrainSettings& settings, const layout::MicrobatchCalculator& batches);

// Samples of .bin/.idx files or mock data, as data/gpt makes them. Throws ConfigError unless reset_position_ids and
// reset_attention_mask are the same: sequences that do not see one another count their positions from 0.
ProvidedDatasets gpt_datasets(const RunContext& run, const data::PerSplit<int64_t>& samples);

// The samples of one evaluation after another: each begins where the one before has ended (Megatron's
// consumed_valid_samples), from the first again behind the last. Moves only between evaluations, by the rank's thread.
class EvaluationWindow : public data::Dataset {
 public:
  EvaluationWindow(std::shared_ptr<const data::Dataset> all, int64_t samples);

  int64_t size() const override { return samples_; }
  data::Sample sample(int64_t index) const override { return all_->sample((begin_ + index) % all_->size()); }
  void advance() { begin_ += samples_; }

 private:
  const std::shared_ptr<const data::Dataset> all_;
  const int64_t samples_;
  int64_t begin_ = 0;
};

}  // namespace megalith::run
