// Routers count tokens during forward, per rank. The counts of all layers form one matrix, which is added up over all
// ranks together with the other totals of the step; both the reported imbalance and the new biases (loss-free
// balancing) follow from it.
#include "megalith/train/step/routing_step.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"

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

// Returns the row of a layer in the loads.
int64_t row_of(const std::vector<int64_t>& layers, int64_t layer) {
  const auto found = std::ranges::find(layers, layer);
  check(found != layers.end(), "layer {} has a router but is not one with experts", layer);
  return found - layers.begin();
}

void add_statistics(const model::GptModel::RouterPlace& place, bool per_layer, MetricSums& sums) {
  const nn::RouterStatistics& seen = place.router->statistics();
  const auto passes = static_cast<double>(seen.micro_batches);
  for (const auto& loss : seen.losses) {
    sums.add(loss.name, loss.sum, passes);
    if (per_layer) sums.add(layer_name(loss.name, place.layer), loss.sum, passes);
  }
  for (const auto& value : seen.spread) sums.add(value.name, value.sum, passes);
  if (!place.router->shape().capacity_factor || !seen.load.defined()) return;
  const auto choices = static_cast<double>(seen.choices);
  sums.add(kDropped, choices - seen.load.to(at::kDouble).sum(), choices);
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

void begin_routing_step(const model::VirtualModels& models) {
  for (const auto& [layer, router] : routers_of(models)) router->begin_step();
}

void add_routing_metrics(const model::VirtualModels& models, MetricSums& sums, bool per_layer) {
  for (const auto& place : routers_of(models)) add_statistics(place, per_layer, sums);
}

at::Tensor expert_loads(const model::VirtualModels& models) {
  const model::ModelConfig& config = models.config();
  if (!config.moe) return {};
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> layers = layers_with_experts(config);
  const at::Tensor loads = at::zeros({std::ssize(layers), config.moe->router.experts},
                                     at::dtype(at::kDouble).device(models.context().device()));
  for (const auto& [layer, router] : routers_of(models))
    if (const at::Tensor& load = router->statistics().load; load.defined()) loads[row_of(layers, layer)].copy_(load);
  return loads;
}

// Busiest expert over the mean, per layer that got tokens: one of multi-token prediction may be dense, or not run.
void set_max_load(std::vector<MetricTotal>& metrics, const at::Tensor& loads) {
  if (!loads.defined()) return;
  MetricTotal total{.name = kMaxLoad};
  const auto* load = loads.const_data_ptr<double>();
  for (int64_t layer = 0; layer < loads.size(0); ++layer, load += loads.size(1)) {
    const double all = std::accumulate(load, load + loads.size(1), 0.0);
    if (all == 0) continue;
    total.sum += *std::max_element(load, load + loads.size(1)) * static_cast<double>(loads.size(1)) / all;
    total.weight += 1;
  }
  for (MetricTotal& metric : metrics)
    if (metric.name == kMaxLoad) metric = total;
}

void end_routing_step(const model::VirtualModels& models, const at::Tensor& loads) {
  if (!loads.defined()) return;
  const std::vector<int64_t> layers = layers_with_experts(models.config());
  for (const auto& [layer, router] : routers_of(models)) router->end_step(loads[row_of(layers, layer)].to(at::kFloat));
}

}  // namespace megalith::train
