// The layouts that a model could be trained in on so many GPUs: which are fastest, which fit, and what limits each.
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

enum class RecomputeChoice { kAsGiven, kNone, kSelective, kFull };

// One of the layouts that a search tries.
struct LayoutChoice {
  int tp = 1, cp = 1, pp = 1, ep = 1, etp = 1;
  int vpp = 1;
  int micro_batch = 1;
  RecomputeChoice recompute = RecomputeChoice::kNone;
  bool offload = false;  // all of the optimizer's state is kept on the host

  int dp(int gpus) const { return gpus / (tp * cp * pp); }
};

// What is given stays as it is; the rest is searched.
struct GivenLayout {
  std::optional<int> tp, pp, cp, ep, etp, vpp, micro_batch;
  bool recompute = false;  // whether, and how, activations are computed twice
};

// run::search_request makes it from options.
struct SearchRequest {
  const model::ModelConfig* model = nullptr;  // borrowed
  GivenLayout given;
  Recompute recompute = Recompute::kNone;  // what is given, or none
  bool offloads = false;                   // the optimizer's state is on the host in every layout
  // The run of a request in a layout; without one, as it is given. Throws ConfigError where there is no such run.
  std::function<RunShape(const SearchRequest& request, const std::optional<LayoutChoice>& choice)> shape;
  int64_t global_batch = 0;  // sequences of a step
  int64_t sequence_length = 0;
  int gpus = 1;
  Cluster cluster;
  size_t best = 5;
};

struct Candidate {
  RunShape run;
  StepTime time;
  RankMemory memory;  // of the fullest stage

  bool fits(const Cluster& cluster) const { return memory.peak() <= cluster.usable_bytes(); }
  // "tp 2 x pp 4 (2 chunks) x dp 8, micro-batch 1, recompute full"
  std::string text() const;
  // The largest part of the step besides products, and how full the memory is.
  std::string limits(const Cluster& cluster) const;
};

struct SearchResult {
  std::vector<Candidate> best;  // that fit, fastest first; one for each set of parallel sizes
  size_t possible = 0;          // sets of sizes that the model can be cut into
  size_t weighed = 0;           // layouts whose memory was looked at
  // Nothing that was asked for fits: why, and the layout nearest to it that does.
  std::string why_not;
  std::optional<Candidate> nearest;
};

// Throws ConfigError for numbers that cannot be.
SearchResult search_layouts(const SearchRequest& request);

// The options of a candidate as a file for `megalith train`.
std::string train_yaml(const Candidate& candidate);

}  // namespace megalith::plan
