// How Megatron-LM's launcher options set the virtual pipeline size.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/layout/layer_split.h"

namespace megalith::layout {

// The launcher options that have a say, under their own names.
struct LauncherVppRequest {
  int num_layers = 0;
  int pipeline_model_parallel_size = 1;
  // At most one of these three.
  std::optional<int> num_layers_per_virtual_pipeline_stage;
  std::optional<int> num_virtual_stages_per_pipeline_rank;
  std::optional<std::string> pipeline_model_parallel_layout;
  std::optional<int> decoder_first_pipeline_num_layers;
  std::optional<int> decoder_last_pipeline_num_layers;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  bool overlap_p2p_comm = true;
  UnevenSplit uneven = UnevenSplit::kRefuse;  // kBalance: layers that do not divide over pp are no error here
};

struct LauncherVpp {
  std::optional<int> vpp;         // 1 counts as none
  bool overlap_p2p_comm = false;  // off without virtual stages
};

// Every problem of the request. The split itself is checked later, by LayerSplit.
std::vector<std::string> problems(const LauncherVppRequest& request);

// Throws ConfigError with every problem.
LauncherVpp resolve_launcher_vpp(const LauncherVppRequest& request);

}  // namespace megalith::layout
