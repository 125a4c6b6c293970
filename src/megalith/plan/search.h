// Searches the layouts in which a model can be trained on a number of GPUs: the fastest that fit, and what limits
// each.
//
//   SearchRequest request = run::search_request(model, args);
//   request.gpus = 64; request.global_batch = 1024; request.sequence_length = 8192;
//   request.cluster = find_cluster("h100-80g");
//   for (const Candidate& c : search_layouts(request).best) print(c.text(), c.time.total());
//
// No GPU is needed and nothing is allocated. A search takes seconds.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/plan/cluster.h"
#include "megalith/plan/memory.h"
#include "megalith/plan/run_shape.h"
#include "megalith/plan/step_time.h"

namespace megalith::plan {

// Recomputation of a layout; kAsGiven keeps the user's options.
enum class RecomputeChoice { kAsGiven, kNone, kSelective, kFull };

// One of the layouts that a search tries.
struct LayoutChoice {
  int tp = 1, cp = 1, pp = 1, ep = 1, etp = 1;
  int vpp = 1;
  int micro_batch = 1;
  RecomputeChoice recompute = RecomputeChoice::kNone;
  bool offload = false;  // keep all optimizer state on the host

  // Returns the data-parallel size on so many GPUs.
  int dp(int gpus) const { return gpus / (tp * cp * pp); }
};

// The sizes that the user has fixed; the others are searched.
struct GivenLayout {
  std::optional<int> tp, pp, cp, ep, etp, vpp, micro_batch;
  bool recompute = false;  // the user has chosen whether and how activations are recomputed
};

// run::search_request makes it from options.
struct SearchRequest {
  const model::ModelConfig* model = nullptr;  // borrowed
  GivenLayout given;
  Recompute recompute = Recompute::kNone;  // the user's choice, or none
  bool offloads = false;                   // the optimizer state is on the host in every layout
  // Returns the run of a request in a layout, or as the user gave it for std::nullopt. Throws ConfigError when there is
  // no such run.
  std::function<RunShape(const SearchRequest& request, const std::optional<LayoutChoice>& choice)> shape;
  int64_t global_batch = 0;  // sequences per step
  // The batch, the machines, and the number of layouts to return.
  int64_t sequence_length = 0;
  MediaRequest media;  // assumed in each sample, for models with towers
  int gpus = 1;
  Cluster cluster;
  size_t best = 5;
};

// A layout with its predicted time and memory.
struct Candidate {
  RunShape run;
  StepTime time;
  RankMemory memory;  // memory of the fullest stage

  // Returns whether the fullest stage fits into the memory that tensors may use.
  bool fits(const Cluster& cluster) const { return memory.peak() <= cluster.usable_bytes(); }
  // "tp 2 x pp 4 (2 chunks) x dp 8, micro-batch 1, recompute full"
  std::string text() const;
  // Returns the largest part of the step besides products, and how full the memory is.
  std::string limits(const Cluster& cluster) const;
};

// The outcome of a search.
struct SearchResult {
  std::vector<Candidate> best;  // layouts that fit, fastest first; one for each set of parallel sizes
  size_t possible = 0;          // sets of sizes into which the model can be cut
  size_t weighed = 0;           // layouts whose memory was computed
  // If nothing that was requested fits: the reason, and the nearest layout that fits.
  std::string why_not;
  std::optional<Candidate> nearest;
};

// Searches. Throws ConfigError for impossible numbers of GPUs or sequences.
SearchResult search_layouts(const SearchRequest& request);

// Returns the options of a candidate as a file for `megalith train`.
std::string train_yaml(const Candidate& candidate);

}  // namespace megalith::plan
