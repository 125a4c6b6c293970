#include "megalith/train/step/overlap_update.h"

#include "megalith/base/env.h"

namespace megalith::train {

namespace {

// FLOPs per token of the products with a parameter in a layer or, as `in_head`, in the head.
double product_flops(const nn::Parameter& parameter, const model::ModelConfig& config, bool in_head) {
  const double all = 2 * static_cast<double>(parameter.value.numel());
  switch (parameter.spec.use) {
    case nn::WeightUse::kColumn:
    case nn::WeightUse::kRow:
    case nn::WeightUse::kReplicated:
    case nn::WeightUse::kRouter:
      return all;
    case nn::WeightUse::kGroupedColumn:
    case nn::WeightUse::kGroupedRow:
      return config.moe
                 ? all * static_cast<double>(config.moe->router.topk) / static_cast<double>(config.moe->router.experts)
                 : 0;
    case nn::WeightUse::kLookup:  // a tied embedding is multiplied by the head
      return in_head ? all : 0;
    case nn::WeightUse::kOther:
      break;
  }
  return 0;
}

}  // namespace

std::vector<optim::ForwardPart> forward_parts(const model::GptModel& chunk) {
  std::vector<optim::ForwardPart> parts;
  for (const std::vector<nn::Parameter*>& own : chunk.parts()) {
    optim::ForwardPart& part = parts.emplace_back();
    part.parameters.assign(own.begin(), own.end());
    if (parts.size() == 1) continue;
    const bool head = chunk.place().head && parts.size() == chunk.parts().size();
    for (const nn::Parameter* parameter : own) part.flops_per_token += product_flops(*parameter, chunk.config(), head);
  }
  return parts;
}

bool overlap_updates(optim::Optimizer& optimizer, const model::VirtualModels& models,
                     const OverlapUpdateSettings& settings, TraceRecorder* trace) {
  // With a single connection to the device, forward passes would queue behind the launches of the second stream.
  if (env_int("CUDA_DEVICE_MAX_CONNECTIONS") == 1) return false;
  const bool one_chunk = models.size() == 1 && models.context().grid().shape().pp == 1;
  if (!settings.enabled || !one_chunk || models[0].options().fp8 || !optimizer.can_overlap()) return false;
  auto queue = settings.make_queue(models.context().device(), trace);
  if (queue == nullptr) return false;
  optimizer.overlap_with_forward(forward_parts(models[0]), settings.overlap, std::move(queue));
  return true;
}

}  // namespace megalith::train
