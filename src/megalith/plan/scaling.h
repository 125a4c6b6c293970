// A scaling study: for each number of GPUs the best layout, its step time, and its goodput under failures.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "megalith/plan/goodput.h"
#include "megalith/plan/search.h"

namespace megalith::plan {

// The study to run.
struct ScalingRequest {
  SearchRequest search;  // its gpus and global_batch are set for each size
  std::vector<int> sizes{16, 64, 256, 1024, 4096, 16384, 65536, 98304};
  FaultModel faults{};
  // Length and number of the simulated runs.
  double days = 30;
  int courses = 20;  // simulated runs that are averaged
  uint64_t seed = 1;
};

// The result for one number of GPUs.
struct ScalingRow {
  int gpus = 0;
  int64_t global_batch = 0;
  std::optional<Candidate> layout{};  // std::nullopt when no layout fits; the fields below are then empty
  CheckpointCost checkpoint{};
  double interval_s = 0, young_s = 0;  // between saves: the best of the simulation, and Young's
  Goodput goodput{};
  double tokens_per_day = 0;  // with failures
};

// Returns the cost of checkpoints: a save stops training while state is copied to the host, and is then written at the
// combined storage speed of all nodes.
CheckpointCost checkpoint_cost(const Candidate& candidate, const Cluster& cluster);

// Runs the study. The global batch of the request grows only as far as needed to give every replica work.
std::vector<ScalingRow> scaling_study(const ScalingRequest& request);

// Render the rows as a table and as JSON.
std::string scaling_text(const ScalingRequest& request, const std::vector<ScalingRow>& rows);
nlohmann::ordered_json scaling_json(const std::vector<ScalingRow>& rows);

}  // namespace megalith::plan
