// Forward and backward of a step's micro-batches on one pipeline rank.
//
// One engine for every schedule: layout::pipeline_schedule says, as a list of actions, what this rank computes in which
// order; the engine fetches what an action needs from the neighbour, calls the caller's forward or autograd's backward,
// and passes the result on. It knows tensors and groups, not models: what a chunk computes is a function.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "megalith/layout/pipeline_schedule.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::nn {
class WeightGradQueue;
}

namespace megalith::pipeline {

// One forward pass of one micro-batch through one chunk of this rank.
struct StageCall {
  int microbatch = 0;
  int chunk = 0;
  at::Tensor input;          // hidden states of the stage before [rows, h]; undefined on the first stage
  bool first_stage = false;  // of the whole pipeline: reads token ids
  bool last_stage = false;   // of the whole pipeline: reads labels
};

// What runs on this rank. Only `forward` is needed.
struct StageWork {
  // The hidden states for the next stage [rows, h], not a view. On the last stage of a training step: the scalar to go
  // back from, scaled as it shall be; what forward returns there in a forward-only step is ignored. Losses and metrics
  // are the caller's: it keeps what it wants of them in here.
  std::function<at::Tensor(const StageCall&)> forward;
  std::function<void(int chunk, bool on)> set_sync;    // whether backward may reduce gradients (DDP::set_sync)
  std::function<void(int chunk)> start_grad_reduce;    // DDP::start_grad_sync
  std::vector<nn::WeightGradQueue*> weight_gradients;  // by chunk; the zero-bubble schedule needs them
  // Told before and after each compute action, waits for messages not included: for timers and traces.
  std::function<void(const layout::PipelineAction&, bool begins)> watch;
};

struct StepPlan {
  layout::PipelineShape shape;
  std::vector<int64_t>
      rows;  // by micro-batch: of the hidden states that pass between stages; not needed without stages
};

struct EngineSettings {
  int64_t hidden = 0;                       // columns of the hidden states
  at::ScalarType dtype = at::kFloat;        // of the hidden states
  std::optional<at::ScalarType> transport;  // in which they and their gradients pass; empty: dtype
  bool overlap = false;                     // messages travel while the rank computes: it waits where it needs them
  bool free_outputs = true;                 // give the memory of hidden states back once they are sent
};

// Runs steps. One thread a rank; the context outlives it.
class ForwardBackward {
 public:
  ForwardBackward(const parallel::ParallelContext& context, const EngineSettings& settings);

  // Collective over the pipeline group: all its ranks pass the same plan. Returns when all gradients of this rank's
  // chunks are accumulated (reduced or not: finalize_gradients waits for that). forward_only runs without autograd.
  // Throws ConfigError for a shape without a schedule; what forward throws passes through, and the weight gradients
  // that wait are dropped.
  void run(const StepPlan& plan, const StageWork& work) const;

 private:
  const parallel::ParallelContext& context_;
  EngineSettings settings_;
};

}  // namespace megalith::pipeline
