// A reference model is an evaluation whose objective keeps scores instead of losses, so it shares the runner, the
// schedule and the context-parallel slicing with the policy.
#include "megalith/train/preference/reference_model.h"

#include <ATen/ATen.h>

#include <utility>

#include "megalith/model/adapter.h"
#include "megalith/train/preference/sequence_scores.h"

namespace megalith::train {

// An objective without a loss: keeps the log-probabilities of the micro-batches that ran last.
class ReferenceModel::Scorer : public Objective {
 public:
  explicit Scorer(comm::Group cp) : cp_(std::move(cp)) {}

  std::vector<at::Tensor> take() { return std::move(scores_); }

  std::vector<std::string> metrics_keys(Phase /*phase*/) const override { return {}; }
  bool wants_correct(Phase /*phase*/) const override { return false; }
  void begin(std::span<const data::MicroBatch> batches, Phase /*phase*/) override {
    scores_.assign(batches.size(), at::Tensor());
  }
  MicrobatchLoss loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                      Phase /*phase*/) const override {
    scores_[static_cast<size_t>(microbatch)] = sequence_log_probabilities(output.token_losses, batch, cp_);
    return {.sum = at::zeros({}, output.token_losses.options()), .count = 0, .metrics = {}};
  }

 private:
  const comm::Group cp_;
  mutable std::vector<at::Tensor> scores_;
};

ReferenceModel::ReferenceModel(model::VirtualModels models, const StepSettings& settings)
    : ReferenceModel(std::make_unique<model::VirtualModels>(std::move(models)), nullptr, settings) {}

std::unique_ptr<ReferenceModel> ReferenceModel::below_adapter(model::VirtualModels& policy,
                                                              const StepSettings& settings) {
  return std::unique_ptr<ReferenceModel>(new ReferenceModel(nullptr, &policy, settings));
}

ReferenceModel::ReferenceModel(std::unique_ptr<model::VirtualModels> own, model::VirtualModels* policy,
                               const StepSettings& settings)
    : own_(std::move(own)),
      models_(own_ ? *own_ : *policy),
      scorer_(std::make_unique<Scorer>(models_.context().cp())),
      runner_(models_, settings, models_.context(), *scorer_, no_trace_) {}

ReferenceModel::~ReferenceModel() = default;

std::vector<at::Tensor> ReferenceModel::log_probabilities(std::span<const data::MicroBatch> batches) {
  const model::WithoutAdapter below(models_);  // for a policy with an adapter; other models have none
  runner_.evaluate(batches);
  if (!models_.context().is_last_stage()) return {};
  return scorer_->take();
}

}  // namespace megalith::train
