// Ends a step for layers with experts: turns the routers' statistics into metrics, and moves biases against the load.
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

// Adds this step's metrics to `sums`, moves the biases, and resets the statistics. Collective over all ranks that hold
// the same layers. Called once per step on every rank, after backward.
void end_routing_step(const model::VirtualModels& models, MetricSums& sums, bool per_layer);

}  // namespace megalith::train
