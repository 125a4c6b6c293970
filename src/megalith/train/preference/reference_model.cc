#include "megalith/train/preference/reference_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/model/adapter.h"
#include "megalith/model/adapter_start.h"

namespace megalith::train {

ReferenceModel::ReferenceModel(model::VirtualModels models, const StepSettings& settings,
                               std::optional<double> ld_alpha)
    : ReferenceModel(std::make_unique<model::VirtualModels>(std::move(models)), nullptr, settings, ld_alpha) {}

std::unique_ptr<ReferenceModel> ReferenceModel::below_adapter(model::VirtualModels& policy,
                                                              const StepSettings& settings,
                                                              std::optional<double> ld_alpha) {
  check<ConfigError>(!model::has_start(policy),
                     "below an adapter that started from principal parts (pissa_init) lies what these left of the"
                     " weights, not the reference; load the reference on its own (ref_model)");
  return std::unique_ptr<ReferenceModel>(new ReferenceModel(nullptr, &policy, settings, ld_alpha));
}

ReferenceModel::ReferenceModel(std::unique_ptr<model::VirtualModels> own, model::VirtualModels* policy,
                               const StepSettings& settings, std::optional<double> ld_alpha)
    : own_(std::move(own)), models_(own_ ? *own_ : *policy), scorer_(models_, settings, ld_alpha) {}

std::vector<at::Tensor> ReferenceModel::log_probabilities(std::span<const data::MicroBatch> batches) {
  const model::WithoutAdapter below(models_);  // for a policy with an adapter; other models have none
  std::vector<at::Tensor> scores = scorer_.log_probabilities(batches);
  if (std::ranges::none_of(batches, [](const data::MicroBatch& batch) { return batch.mismatched != nullptr; }))
    return scores;
  const std::vector<at::Tensor> others = scorer_.mismatched_log_probabilities(batches);
  for (size_t i = 0; i < scores.size(); ++i)
    if (scores[i].defined()) scores[i] = at::cat({scores[i], others[i]});
  return scores;
}

}  // namespace megalith::train
