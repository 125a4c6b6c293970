// Routers count tokens during forward, per rank. At the end of a step one all-reduce of [layers, E] makes the counts
// those of all ranks, from which both the reported imbalance and the new biases (loss-free balancing) follow.
#include "megalith/train/step/routing_step.h"

#include <ATen/ATen.h>

namespace megalith::train {

namespace {

constexpr const char* kMaxLoad = "expert_load_max";
constexpr const char* kDropped = "expert_tokens_dropped";

// In the order of the layers, which is the same on all ranks that share them.
std::vector<const nn::Router*> routers_of(const model::VirtualModels& models) {
  std::vector<const nn::Router*> routers;
  for (const auto& chunk : models)
    for (const auto& place : chunk->routers()) routers.push_back(place.router);
  return routers;
}

// Returns the tokens per layer and expert over all ranks: fp32 [layers, E].
at::Tensor loads_of(const std::vector<const nn::Router*>& routers, const model::VirtualModels& models) {
  const at::Device device = models.context().device();
  std::vector<at::Tensor> loads;
  for (const nn::Router* router : routers) {
    const at::Tensor& load = router->statistics().load;
    loads.push_back(load.defined() ? load : at::zeros({router->shape().experts}, at::dtype(at::kFloat).device(device)));
  }
  const at::Tensor all = at::stack(loads);
  models.context().group(layout::GroupKind::kTpDpCp).all_reduce(all, comm::ReduceOp::kSum, "load of the experts");
  return all;
}

}  // namespace

std::vector<std::string> routing_metrics(const model::ModelConfig& config) {
  if (!config.moe) return {};
  std::vector<std::string> names = nn::loss_names(config.moe->router);
  names.emplace_back(kMaxLoad);
  if (config.moe->router.capacity_factor) names.emplace_back(kDropped);
  return names;
}

void end_routing_step(const model::VirtualModels& models, MetricSums& sums) {
  const std::vector<const nn::Router*> routers = routers_of(models);
  if (routers.empty()) return;  // all ranks of a stage agree on this, so no collective is left hanging
  // Load imbalance per layer: busiest expert over the mean. The clamp avoids 0/0 in a step without tokens.
  const at::Tensor loads = loads_of(routers, models);
  const at::Tensor busiest = loads.amax(1) / loads.mean(1).clamp_min(1e-9);
  sums.add(kMaxLoad, busiest.sum(), static_cast<double>(routers.size()));
  for (size_t i = 0; i < routers.size(); ++i) {
    const nn::RouterStatistics& seen = routers[i]->statistics();
    for (const auto& loss : seen.losses) sums.add(loss.name, loss.sum, static_cast<double>(seen.micro_batches));
    if (routers[i]->shape().capacity_factor)
      sums.add(kDropped, static_cast<double>(seen.dropped), static_cast<double>(seen.choices));
    routers[i]->end_step(loads[static_cast<int64_t>(i)]);
  }
}

}  // namespace megalith::train
