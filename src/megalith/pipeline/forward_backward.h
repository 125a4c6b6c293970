// Forward and backward of a step's micro-batches on one pipeline rank.
//
// One engine serves every schedule. layout::pipeline_schedule lists the actions of this rank in order; the engine
// receives the input of each action from the neighbor, calls the caller's forward or autograd's backward, and sends the
// result on. It knows tensors and groups, not models: the caller passes the computation of a chunk as a function.
//
//   ForwardBackward engine(context, {.hidden = h, .dtype = at::kBFloat16});
//   engine.run({shape, rows}, {.forward = [&](const StageCall& call) { return chunks[call.chunk](call.input); }});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/layout/pipeline_schedule.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::nn {
class Turns;
class WeightGradQueue;
}  // namespace megalith::nn

namespace megalith::pipeline {

// Weight gradients of the head that the last stage leaves until it has sent its last message: it computes them while
// the stages before it still run backward.
struct DeferredHead {
  nn::WeightGradQueue* queue = nullptr;  // attached to the head's weight; nullptr defers nothing
  int microbatches = 0;                  // how many are deferred at most, beginning with the first
};

// One forward pass of one micro-batch through one chunk of this rank.
struct StageCall {
  int microbatch = 0;
  int chunk = 0;
  at::Tensor input;          // hidden states of the stage before [rows, h]; undefined on the first stage
  bool first_stage = false;  // first of the whole pipeline: reads token ids
  bool last_stage = false;   // last of the whole pipeline: reads labels
};

// The functions that the engine calls on this rank. Only `forward` is required.
struct StageWork {
  // Returns the hidden states for the next stage [rows, h], which should not be a view (the engine frees their storage
  // once they are sent). On the last stage of a training step, returns the scalar that backward starts from, already
  // scaled; in a forward-only step its result is ignored there. The function itself records losses and metrics.
  std::function<at::Tensor(const StageCall&)> forward;
  std::function<void(int chunk, bool on)> set_sync;    // whether backward may reduce gradients (DDP::set_sync)
  std::function<void(int chunk)> start_grad_reduce;    // DDP::start_grad_sync
  std::vector<nn::WeightGradQueue*> weight_gradients;  // by chunk; required by the zero-bubble schedule only
  DeferredHead head;                                   // not for the zero-bubble schedule, not with pairs
  // Called before and after each compute action, for timers and traces; waiting for messages is not included. A pair is
  // one action: its forward, with `with_next` set.
  std::function<void(const layout::PipelineAction&, bool begins)> watch;
};

// The sizes of one step, equal on all ranks of a pipeline.
struct StepPlan {
  layout::PipelineShape shape;
  std::vector<int64_t> rows;  // by micro-batch: rows of the hidden states sent between stages; may be empty when pp = 1
};

// Settings that stay the same for all steps.
struct EngineSettings {
  int64_t hidden = 0;                       // columns of the hidden states
  at::ScalarType dtype = at::kFloat;        // type of the hidden states
  std::optional<at::ScalarType> transport;  // dtype of the messages, both directions; std::nullopt means `dtype`
  bool overlap = false;                     // wait for a message only where it is needed, not right after posting it
  bool free_outputs = true;                 // free the storage of hidden states once they are sent
};

// Runs steps. Used by one thread per rank; the context must outlive it.
class ForwardBackward {
 public:
  // `settings` are the same on all ranks of the pipeline.
  ForwardBackward(const parallel::ParallelContext& context, const EngineSettings& settings);

  // Runs one step. Collective over the pipeline group: all its ranks pass the same plan. Returns when all gradients of
  // this rank's chunks are accumulated; their reduction may still be in flight (finalize_gradients waits for it). A
  // forward_only step runs without autograd. In a pair, the backward pass calls autograd on a thread of its own, and
  // both passes alternate (nn/turns.h); `forward` is always called on this thread. Throws ConfigError for a shape
  // without a schedule. Exceptions from `forward` pass through after the queued weight gradients have been dropped.
  void run(const StepPlan& plan, const StageWork& work) const;

 private:
  const parallel::ParallelContext& context_;
  EngineSettings settings_;
  std::shared_ptr<nn::Turns> turns_;  // for pairs (layout::PipelineShape::paired)
};

}  // namespace megalith::pipeline
