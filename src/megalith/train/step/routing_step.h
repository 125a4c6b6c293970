// Steps of layers with experts: turns the routers' statistics into metrics, and moves biases against the load. Nothing
// here communicates or waits: loads and metrics travel with the other totals of a step (step_totals.h).
#pragma once

#include <string>
#include <vector>

#include "megalith/model/virtual_models.h"
#include "megalith/train/report/metric_sums.h"

namespace megalith::train {

// Returns the names of the metrics of a model with experts, the same on every rank; empty without experts.
//   load_balancing_loss, seq_load_balancing_loss,   those that the model has, without their coefficients:
//   global_load_balancing_loss, z_loss              means over layers and micro-batches
//   expert_distributed_std, max_token_per_expert    with load_balancing_loss: see nn::spread_names; means over
//                                                   layers and micro-batches
//   expert_load_max                                 tokens of the busiest expert over the mean of all (1 is
//                                                   perfect balance), averaged over layers
//   expert_tokens_dropped                           with a capacity factor: share of the choices that found
//                                                   no room
//   moe/<loss>_layer_<i>                            with `per_layer`: each loss of each layer with experts, counted
//                                                   from 0; multi-token prediction follows the last layer
std::vector<std::string> routing_metrics(const model::ModelConfig& config, bool per_layer);

// Begins a step, or repeats it: resets the statistics of all routers.
void begin_routing_step(const model::VirtualModels& models);
// Adds this rank's share of the metrics to `sums`, after backward; all but expert_load_max.
void add_routing_metrics(const model::VirtualModels& models, MetricSums& sums, bool per_layer);
// Returns this rank's tokens per expert, fp64 [layers with experts in the whole model, E], 0 for layers that it does
// not hold; undefined for a model without experts. Loads of all ranks add up.
at::Tensor expert_loads(const model::VirtualModels& models);
// Sets expert_load_max among the metrics of all ranks by their loads, which are in the host's memory.
void set_max_load(std::vector<MetricTotal>& metrics, const at::Tensor& loads);
// Ends a step once it is accepted: moves the biases by the loads of all ranks.
void end_routing_step(const model::VirtualModels& models, const at::Tensor& loads);

}  // namespace megalith::train
