// Resolves the virtual pipeline size from Megatron-LM's launcher options.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/layout/layer_split.h"

namespace megalith::layout {

// The launcher options that matter, under their own names.
struct LauncherVppRequest {
  int num_layers = 0;
  int pipeline_model_parallel_size = 1;
  // At most one of these three may be given.
  std::optional<int> num_layers_per_virtual_pipeline_stage;
  std::optional<int> num_virtual_stages_per_pipeline_rank;
  std::optional<std::string> pipeline_model_parallel_layout;
  std::optional<int> decoder_first_pipeline_num_layers;
  std::optional<int> decoder_last_pipeline_num_layers;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  bool overlap_p2p_comm = true;
  UnevenSplit uneven = UnevenSplit::kRefuse;  // kBalance accepts layers that do not divide over pp
};

// The result.
struct LauncherVpp {
  std::optional<int> vpp;         // std::nullopt also for a size of 1
  bool overlap_p2p_comm = false;  // off without virtual stages
};

// Returns every problem of the request. The split itself is checked later, by LayerSplit.
std::vector<std::string> problems(const LauncherVppRequest& request);

// Resolves the request. Throws ConfigError listing every problem.
LauncherVpp resolve_launcher_vpp(const LauncherVppRequest& request);

}  // namespace megalith::layout
