// MicrobatchRunner: runs micro-batches through this rank's chunks by the pipeline's schedule, and returns their losses.
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

class GraphedStages;

// Everything that a training pass needs besides the micro-batches. Hooks may be empty; `chunks` are in the order of the
// model's chunks.
struct BackwardPass {
  std::span<optim::DistributedDataParallel* const> chunks;
  float loss_scale = 1;
  std::function<void()> substep_end{};  // after each micro-batch but the last; never with several pipeline stages
  // Called on the last stage for each micro-batch once the copy of its loss to the host has been started; before its
  // backward pass, unless graphs are replayed.
  std::function<void(const MicrobatchLoss&)> on_loss{};
  bool gathers_params = false;  // parameters arrive while the first micro-batch runs (overlap_param_gather)
};

// Returns the settings with which the pipeline's engine sends the hidden states of a model.
pipeline::EngineSettings engine_settings(const model::ModelConfig& model, at::ScalarType dtype, bool overlap);

// One thread per rank. Everything passed to the constructor outlives it. Knows nothing of optimizers: it leaves
// gradients in the parameters' buffers, through the chunks of BackwardPass.
class MicrobatchRunner {
 public:
  MicrobatchRunner(model::VirtualModels& models, const StepSettings& settings, const parallel::ParallelContext& context,
                   Objective& objective, TraceRecorder& trace);
  ~MicrobatchRunner();

  // All functions are collective over the pipeline-, tensor- and context-parallel ranks of a replica. They take whole
  // micro-batches; the objective sees this rank's context-parallel slices. They return the detached loss of each
  // micro-batch on the last stage, and an empty list on other stages.

  // Runs forward and backward. With L the sum and n the count of a micro-batch's loss, backward starts from L · loss
  // scale if the loss is per token (finalize_gradients divides by all tokens), otherwise from L / n / micro-batches ·
  // loss scale. L covers this rank's slice of the tokens, n all of them, so that the gradient is the true one for every
  // cp. Attached losses are added in the same way, with their own counts, times their factors.
  std::vector<MicrobatchLoss> train(std::span<const data::MicroBatch> batches, const BackwardPass& pass);

  // Makes train() record micro-batches and replay them (graphed_microbatches.h; with several pipeline stages pass by
  // pass, graphed_stages.h). The current stream must be an OwnStream until stop_graphs(). Returns false, after a
  // warning that says why, if this run cannot use graphs.
  //
  // Gradients are reduced and parameters gathered outside of graphs. Where both overlap with passes, those passes run
  // without a graph: the first micro-batch of a step with overlap_param_gather, the last with overlap_grad_reduce.
  bool start_graphs();
  // Does the same with graphs of `make` and without looking for obstacles, for tests.
  void use_graphs(MakeDeviceGraph make);
  void stop_graphs();
  bool uses_graphs() const { return graphs_ != nullptr || stages_ != nullptr; }
  int recorded_graphs() const;

  // Runs forward only. Micro-batches without samples, which fill up a group, have a loss of count 0.
  std::vector<MicrobatchLoss> evaluate(std::span<const data::MicroBatch> batches);

  // Returns the smallest number of micro-batches >= count that the schedule accepts for a forward-only run.
  int evaluation_group(int count) const;

  Objective& objective() const { return objective_; }
  // Returns the names of the losses that the model trains beside the objective's.
  std::vector<std::string> attached_losses() const;
  const parallel::ParallelContext& context() const { return context_; }
  TraceRecorder& trace() const { return trace_; }
  bool per_token_loss() const { return settings_.per_token_loss; }
  // Returns whether token losses are smoothed (label_smoothing_factor); their exponential is not a perplexity then.
  bool smooths_labels() const;
  bool router_losses_by_layer() const { return settings_.router_losses_by_layer; }
  // Values of the last stage are held by several ranks of a replica but must be reported by only one of them.
  bool speaks_for_replica() const;  // true on the last stage for the first tensor-parallel rank
  bool counts_for_replica() const;  // true on the last stage for the first tensor- and context-parallel rank

 private:
  // Returns what this rank reads of whole micro-batches.
  std::vector<data::MicroBatch> own_part(std::span<const data::MicroBatch> whole, Phase phase) const;
  pipeline::StepPlan plan(std::span<const data::MicroBatch> batches, Phase phase) const;
  layout::PipelineShape shape(int microbatches, Phase phase) const;
  // Returns hidden states for the next stage; on the last stage, appends the loss to `losses` and returns its sum.
  at::Tensor forward(const pipeline::StageCall& call, const data::MicroBatch& batch, Phase phase,
                     std::vector<MicrobatchLoss>& losses) const;
  // Run forward and backward of all micro-batches, by the schedule or, with a single stage, by graphs.
  void run_schedule(std::span<const data::MicroBatch> batches, const BackwardPass& pass,
                    std::vector<MicrobatchLoss>& losses) const;
  void run_graphs(std::span<const data::MicroBatch> batches, const BackwardPass& pass,
                  std::vector<MicrobatchLoss>& losses) const;
  // Returns the factor for the routers' losses that gives them the same weight relative to the model's loss as if all
  // of them were added up before backward.
  double aux_loss_scale(float loss_scale, size_t microbatches) const;
  at::Tensor start_of_backward(const MicrobatchLoss& loss, float loss_scale, size_t microbatches) const;
  double backward_factor(int64_t count, float loss_scale, size_t microbatches) const;
  // Returns the numbers beside a micro-batch that are baked into a graph of it.
  std::vector<double> graph_constants(const data::MicroBatch& batch, float loss_scale, size_t microbatches) const;
  // Returns whether communication overlaps with a micro-batch of a step, so that no graph can hold it.
  bool communicates(size_t microbatch, size_t microbatches, const BackwardPass& pass) const;
  void warn_if_never_graphed(size_t microbatches, const BackwardPass& pass) const;
  // Runs the forward pass of a stage by a graph, whose output knows the graph of its backward. On the last stage the
  // output is where backward starts, and the loss is appended. Returns an undefined tensor if the caller has to run it.
  at::Tensor replayed_forward(const pipeline::StageCall& call, std::span<const data::MicroBatch> batches,
                              const BackwardPass& pass, std::vector<MicrobatchLoss>& losses) const;

  model::VirtualModels& models_;
  const StepSettings settings_;
  const parallel::ParallelContext& context_;
  Objective& objective_;
  TraceRecorder& trace_;
  pipeline::ForwardBackward engine_;
  std::unique_ptr<GraphedMicrobatches> graphs_;  // nullptr when graphs are not used, or with several stages
  std::unique_ptr<GraphedStages> stages_;        // nullptr when graphs are not used, or with one stage
  mutable bool warned_of_overlap_ = false;       // has said that overlap leaves no micro-batch for graphs
};

}  // namespace megalith::train
