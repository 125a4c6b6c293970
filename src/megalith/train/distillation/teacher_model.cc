// The objective that the frozen model runs takes the place of the head's loss, and keeps its input.
#include "megalith/train/distillation/teacher_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "megalith/base/error.h"
#include "megalith/nn/tensor_parallel/linear_function.h"
#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::train {

// An objective without a loss: keeps the hidden states of the micro-batches that ran last, [t, h] or [t/tp, h].
class TeacherModel::Keeper : public Objective {
 public:
  const at::Tensor& of(int microbatch) const { return hidden_.at(static_cast<size_t>(microbatch)); }

  std::vector<std::string> metrics_keys(Phase /*phase*/) const override { return {}; }
  bool sums_token_losses() const override { return false; }
  bool trains_attached() const override { return false; }
  void begin(std::span<const data::MicroBatch> batches, Phase /*phase*/) override {
    hidden_.assign(batches.size(), at::Tensor());
  }
  MicrobatchLoss run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                          int microbatch, Phase phase) const override {
    model::ModelInput input = inputs(batch, chunk, std::move(hidden), phase);
    const model::HeadLoss keep = [&](const at::Tensor& y, nn::Parameter& /*weight*/) {
      hidden_.at(static_cast<size_t>(microbatch)) = y;
      return at::zeros({batch.tokens()}, y.options().dtype(at::kFloat));
    };
    input.head_loss = &keep;
    return {.sum = chunk.forward(input).sum(), .count = 0};
  }

 private:
  mutable std::vector<at::Tensor> hidden_;  // by micro-batch; undefined on stages without the head
};

TeacherModel::TeacherModel(model::VirtualModels models, const StepSettings& settings)
    : TeacherModel(std::move(models), settings, std::make_unique<Keeper>()) {}

TeacherModel::TeacherModel(model::VirtualModels models, const StepSettings& settings, std::unique_ptr<Keeper> keeper)
    : keeper_(*keeper), frozen_(std::move(models), settings, std::move(keeper)) {
  const model::Head* head = last_chunk().head();
  check<ConfigError>(head == nullptr || (head->takes_loss() && head->projection() != nullptr),
                     "the teacher, a {} model, has a head of its own; a teacher predicts tokens",
                     last_chunk().config().family);
}

TeacherModel::~TeacherModel() = default;

void TeacherModel::run(std::span<const data::MicroBatch> batches) { frozen_.run(batches); }

const model::GptModel& TeacherModel::last_chunk() const { return frozen_.models()[frozen_.models().size() - 1]; }

ops::VocabRange TeacherModel::vocab_range() const { return last_chunk().vocab_range(); }

comm::Group TeacherModel::tp() const { return last_chunk().tensor_parallel().group; }

int64_t TeacherModel::vocab_size() const { return frozen_.models().config().vocab_size; }

int TeacherModel::group_size(int count) const { return frozen_.runner().evaluation_group(count); }

bool TeacherModel::counts_for_replica() const { return frozen_.runner().counts_for_replica(); }

at::Tensor TeacherModel::hidden(int microbatch) const {
  const at::Tensor& kept = keeper_.of(microbatch);
  check(kept.defined(),
        "the teacher has no hidden states of micro-batch {}; call run() first, and hidden() on the"
        " last stage",
        microbatch);
  const nn::TensorParallel& tp = last_chunk().tensor_parallel();
  return tp.splits_tokens() ? nn::all_gather_rows(kept, tp.group, "teacher's hidden states") : kept;
}

// The rows are whole, so that the product has no collectives.
at::Tensor TeacherModel::logits(const at::Tensor& rows) const {
  const at::NoGradGuard no_grad;
  return nn::column_linear(rows, *last_chunk().head()->projection(), nullptr,
                           {.group = last_chunk().tensor_parallel().group});
}

}  // namespace megalith::train
