// MicrobatchRunner: micro-batches through this rank's chunks, by the pipeline's schedule, and their losses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/model/virtual_models.h"
#include "megalith/optim/distributed_data_parallel.h"
#include "megalith/pipeline/forward_backward.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/settings/trainer_settings.h"
#include "megalith/train/step/graphed_microbatches.h"

namespace megalith::train {

// What backward needs besides the micro-batches.
struct BackwardPass {
  std::span<optim::DistributedDataParallel* const> chunks;
  float loss_scale = 1;
  std::function<void()> substep_end{};  // after each micro-batch but the last; never with several pipeline stages
  // On the last stage, for each micro-batch: its loss is on its way to the host. Before its backward pass, unless
  // graphs are played back.
  std::function<void(const MicrobatchLoss&)> on_loss{};
};

// How the pipeline's engine carries the hidden states of a model.
pipeline::EngineSettings engine_settings(const model::ModelConfig& model, at::ScalarType dtype, bool overlap);

// One thread a rank. Everything that it is made of outlives it.
class MicrobatchRunner {
 public:
  MicrobatchRunner(model::VirtualModels& models, const StepSettings& settings, const parallel::ParallelContext& context,
                   Objective& objective, TraceRecorder& trace);

  // All functions are collective over the pipeline, tensor- and context-parallel ranks of a replica. They take whole
  // micro-batches; the objective sees this rank's slices of them (context_slices). They return the loss of each
  // micro-batch, without its graph, on the last stage, and nothing on others.

  // Forward and backward. What backward starts from is, with L the sum and n the count of a micro-batch's loss,
  // L times the loss scale per token (finalize_gradients divides by all tokens), otherwise L / n / micro-batches times
  // the loss scale. L covers this rank's slice of the tokens, n all of them: the gradient is the true one for every cp.
  // Attached losses go in alike, with their own counts, times their factors.
  std::vector<MicrobatchLoss> train(std::span<const data::MicroBatch> batches, const BackwardPass& pass);

  // From now on train() records micro-batches and plays them back (graphed_microbatches.h); the current stream is an
  // OwnStream until stop_graphs(). False, with a warning that says why: this run cannot.
  bool start_graphs();
  void stop_graphs() { graphs_.reset(); }
  bool uses_graphs() const { return graphs_ != nullptr; }

  // Forward only. Micro-batches without samples, which fill a group up, have a loss of count 0.
  std::vector<MicrobatchLoss> evaluate(std::span<const data::MicroBatch> batches);

  // The smallest number of micro-batches >= count that the schedule takes in a forward-only run.
  int evaluation_group(int count) const;

  Objective& objective() const { return objective_; }
  // Names of the losses that the model trains beside the objective's.
  std::vector<std::string> attached_losses() const;
  const parallel::ParallelContext& context() const { return context_; }
  TraceRecorder& trace() const { return trace_; }
  bool per_token_loss() const { return settings_.per_token_loss; }
  // One rank of each replica of the data speaks for all: values of the last stage that its ranks hold alike.
  bool speaks_for_replica() const;  // of the tensor-parallel ranks
  bool counts_for_replica() const;  // and of the context-parallel ranks

 private:
  pipeline::StepPlan plan(std::span<const data::MicroBatch> batches, Phase phase) const;
  layout::PipelineShape shape(int microbatches, Phase phase) const;
  // Hidden states for the next stage; on the last one the loss goes to `losses`, and what is returned is its sum.
  at::Tensor forward(const pipeline::StageCall& call, const data::MicroBatch& batch, Phase phase,
                     std::vector<MicrobatchLoss>& losses) const;
  // Forward and backward of all micro-batches, by the schedule or, of one stage, by graphs.
  void run_schedule(std::span<const data::MicroBatch> batches, const BackwardPass& pass,
                    std::vector<MicrobatchLoss>& losses) const;
  void run_graphs(std::span<const data::MicroBatch> batches, const BackwardPass& pass,
                  std::vector<MicrobatchLoss>& losses) const;
  // What the losses of routers are multiplied by, so that they weigh as much beside the model's as if all were added up
  // before backward.
  double aux_loss_scale(float loss_scale, size_t microbatches) const;
  at::Tensor start_of_backward(const MicrobatchLoss& loss, float loss_scale, size_t microbatches) const;
  double backward_factor(int64_t count, float loss_scale, size_t microbatches) const;

  model::VirtualModels& models_;
  const StepSettings settings_;
  const parallel::ParallelContext& context_;
  Objective& objective_;
  TraceRecorder& trace_;
  pipeline::ForwardBackward engine_;
  std::unique_ptr<GraphedMicrobatches> graphs_;  // nullptr: none are used
};

}  // namespace megalith::train
