// The end of a step for layers with experts: what routers saw becomes metrics, and biases move against the load.
#pragma once

#include <string>
#include <vector>

#include "megalith/model/virtual_models.h"
#include "megalith/train/report/metric_sums.h"

namespace megalith::train {

// Names of the metrics of a model with experts, the same on every rank; none without.
//   load_balancing_loss, seq_load_balancing_loss, global_load_balancing_loss, z_loss   without their coefficients,
//   means
//                                       over layers and micro-batches; those that the model has
//   expert_load_max                     tokens of the busiest expert over the mean of all: 1 is perfect balance; a mean
//                                       over layers
//   expert_tokens_dropped               share of the choices that found no room; with a capacity factor
std::vector<std::string> routing_metrics(const model::ModelConfig& config);

// Collective over all ranks that hold the same layers. Adds this step's metrics to `sums`, moves the biases, and starts
// the statistics anew.
void end_routing_step(const model::VirtualModels& models, MetricSums& sums);

}  // namespace megalith::train
