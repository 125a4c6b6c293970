// Data of `pretrain`: the number of samples that each split needs, the datasets of indexed files, and their samples in
// the form of module `data`'s collators.
#include "megalith/run/pretrain_data.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/run/resolve/indexed_settings.h"

namespace megalith::run {

namespace {

// Returns 0 for a run that only evaluates.
int64_t iterations_of(const train::LengthSettings& length, const layout::MicrobatchCalculator& batches) {
  if (length.max_steps > 0) return length.max_steps;
  return length.train_samples > 0 ? batches.steps_of(length.train_samples) : 0;
}

// Adapts a PretrainDataset to the form that collators take.
class GptSamples : public data::Dataset {
 public:
  explicit GptSamples(std::shared_ptr<const data::PretrainDataset> samples) : samples_(std::move(samples)) {}

  int64_t size() const override { return samples_->size(); }

  data::Sample sample(int64_t index) const override {
    const data::PretrainSample in = samples_->sample(index);
    // GPT samples have labels beside their tokens already (shifted), and a mask in place of ignored labels.
    data::Sequence row{.ids = {in.tokens.begin(), in.tokens.end()}, .labels = {}, .pieces = {}, .shifted = true};
    row.labels.reserve(in.labels.size());
    for (size_t i = 0; i < in.labels.size(); ++i)
      row.labels.push_back(in.loss_mask[i] != 0 ? static_cast<int32_t>(in.labels[i]) : data::kIgnoredLabel);
    const auto& ends = in.cumulative_lengths;
    // Lengths of documents that do not see one another; a row of one document needs none.
    for (size_t i = 1; i < ends.size() && ends.size() > 2; ++i) row.pieces.push_back(ends[i] - ends[i - 1]);
    return {.row = std::move(row), .rejected = std::nullopt};
  }

 private:
  const std::shared_ptr<const data::PretrainDataset> samples_;
};

// An empty split counts as absent.
std::shared_ptr<const data::Dataset> as_dataset(std::shared_ptr<const data::PretrainDataset> samples) {
  if (!samples || samples->size() == 0) return nullptr;
  return std::make_shared<GptSamples>(std::move(samples));
}

}  // namespace

int64_t samples_of_evaluation(const PretrainSettings& settings) {
  return settings.eval_iters * settings.eval_global_batch_size;
}

data::PerSplit<int64_t> samples_needed(const RunSettings& run, const layout::MicrobatchCalculator& batches) {
  const int64_t iterations = iterations_of(run.trainer.length, batches);
  const int64_t evaluation = samples_of_evaluation(run.pretrain);
  const auto interval = static_cast<int64_t>(run.trainer.eval.steps);
  // Megatron's count: one evaluation per interval, and one at the end.
  const int64_t evaluations = interval > 0 ? iterations / interval + 1 : 1;
  const int64_t given = run.trainer.length.train_samples;
  return {given > 0 ? given : iterations * batches.final_global_batch_size(), evaluations * evaluation, evaluation};
}

ProvidedDatasets gpt_datasets(const RunContext& run, const data::PerSplit<int64_t>& samples) {
  const int64_t seq_length = run.settings().pretrain.seq_length;
  const data::IndexedSettings indexed = indexed_settings(run.args().indexed);
  check<ConfigError>(indexed.reset_position_ids == indexed.reset_attention_mask,
                     "reset_position_ids and reset_attention_mask go together: sequences that do not see one another"
                     " count their positions from 0. Give both or none");
  check<ConfigError>(seq_length > 0, "seq_length is not given: the tokens of a sample");
  const data::PretrainDatasets made = data::make_pretrain_datasets({.data = indexed,
                                                                    .seq_length = seq_length,
                                                                    .seed = run.args().seeds.seed,
                                                                    .samples = {samples[0], samples[1], samples[2]},
                                                                    .tokens = run.required_tokenizer().tokens,
                                                                    .wait = {}});
  return {as_dataset(made.train), as_dataset(made.valid), as_dataset(made.test)};
}

EvaluationWindow::EvaluationWindow(std::shared_ptr<const data::Dataset> all, int64_t samples)
    : all_(std::move(all)), samples_(std::min(samples, all_->size())) {}

}  // namespace megalith::run
