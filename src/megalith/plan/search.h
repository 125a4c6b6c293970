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

struct SearchRequest {
  const model::ModelConfig* model = nullptr;  // borrowed
  // What is given stays as it is: parallel sizes, virtual stages, recomputation, micro-batch (micro_batch), the
  // optimizer's options. What is not given is searched.
  config::TrainingArguments args;
  // How derived arguments say that the model is held and run: run::model_options.
  std::function<model::ModelOptions(const config::TrainingArguments& args, at::Device device)> model_options;
  std::optional<int> micro_batch;
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
