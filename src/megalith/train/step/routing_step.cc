// Routers count tokens during forward, per rank. At the end of a step one all-reduce of [layers, E] makes the counts
// those of all ranks, from which both the reported imbalance and the new biases (loss-free balancing) follow.
#include "megalith/train/step/routing_step.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace megalith::train {

namespace {

constexpr const char* kMaxLoad = "expert_load_max";
constexpr const char* kDropped = "expert_tokens_dropped";

using RouterPlaces = std::vector<model::GptModel::RouterPlace>;

// In the order of the layers, which is the same on all ranks that share them.
RouterPlaces routers_of(const model::VirtualModels& models) {
  RouterPlaces all;
  for (const auto& chunk : models)
    for (const auto& place : chunk->routers()) all.push_back(place);
  return all;
}

// Megatron's name of one layer's loss.
std::string layer_name(const std::string& loss, int64_t layer) { return fmt::format("moe/{}_layer_{}", loss, layer); }

// Returns the numbers of the layers that may have experts, those of multi-token prediction last.
std::vector<int64_t> layers_with_experts(const model::ModelConfig& config) {
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    if (config.is_moe(layer)) layers.push_back(layer);
  for (int64_t depth = 0; depth < config.mtp_layers; ++depth) layers.push_back(config.num_layers + depth);
  return layers;
}

// Returns the tokens per layer and expert over all ranks: fp32 [layers, E].
at::Tensor loads_of(const RouterPlaces& places, const model::VirtualModels& models) {
  const at::Device device = models.context().device();
  std::vector<at::Tensor> loads;
  for (const auto& [layer, router] : places) {
    const at::Tensor& load = router->statistics().load;
    loads.push_back(load.defined() ? load : at::zeros({router->shape().experts}, at::dtype(at::kFloat).device(device)));
  }
  const at::Tensor all = at::stack(loads);
  models.context().group(layout::GroupKind::kTpDpCp).all_reduce(all, comm::ReduceOp::kSum, "load of the experts");
  return all;
}

void add_statistics(const model::GptModel::RouterPlace& place, bool per_layer, MetricSums& sums) {
  const nn::RouterStatistics& seen = place.router->statistics();
  const auto passes = static_cast<double>(seen.micro_batches);
  for (const auto& loss : seen.losses) {
    sums.add(loss.name, loss.sum, passes);
    if (per_layer) sums.add(layer_name(loss.name, place.layer), loss.sum, passes);
  }
  for (const auto& value : seen.spread) sums.add(value.name, value.sum, passes);
  if (place.router->shape().capacity_factor)
    sums.add(kDropped, static_cast<double>(seen.dropped), static_cast<double>(seen.choices));
}

}  // namespace

std::vector<std::string> routing_metrics(const model::ModelConfig& config, bool per_layer) {
  if (!config.moe) return {};
  const std::vector<std::string> losses = nn::loss_names(config.moe->router);
  std::vector<std::string> names = losses;
  for (std::string& name : nn::spread_names(config.moe->router)) names.push_back(std::move(name));
  names.emplace_back(kMaxLoad);
  if (config.moe->router.capacity_factor) names.emplace_back(kDropped);
  if (!per_layer) return names;
  for (const std::string& loss : losses)
    for (const int64_t layer : layers_with_experts(config)) names.push_back(layer_name(loss, layer));
  return names;
}

void end_routing_step(const model::VirtualModels& models, MetricSums& sums, bool per_layer) {
  const RouterPlaces routers = routers_of(models);
  if (routers.empty()) return;  // all ranks of a stage agree on this, so no collective is left hanging
  // Load imbalance per layer: busiest expert over the mean. The clamp avoids 0/0 in a step without tokens.
  const at::Tensor loads = loads_of(routers, models);
  const at::Tensor busiest = loads.amax(1) / loads.mean(1).clamp_min(1e-9);
  sums.add(kMaxLoad, busiest.sum(), static_cast<double>(routers.size()));
  for (size_t i = 0; i < routers.size(); ++i) {
    add_statistics(routers[i], per_layer, sums);
    routers[i].router->end_step(loads[static_cast<int64_t>(i)]);
  }
}

}  // namespace megalith::train
