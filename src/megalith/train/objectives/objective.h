// Objective: what training optimizes, seen from one micro-batch. Other kinds of training differ here and nowhere else
// in the trainer: preference training derives from it. A custom loss that weighs each label by an extra tensor of the
// micro-batch:
//
//   class WeightedLoss : public train::Objective {
//     std::vector<std::string> extra_keys() const override { return {"weight"}; }
//     train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch,
//                                int /*microbatch*/, train::Phase /*phase*/) const override {
//       const at::Tensor weights = batch.extra("weight", output.token_losses.device());
//       return {.sum = (weights * output.token_losses).sum(), .count = batch.loss_tokens};
//     }
//   };
//
// Legend: t tokens of a micro-batch on this rank: its context-parallel slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/data/micro_batch.h"
#include "megalith/model/gpt_model.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::train {

// Whether a pass trains or evaluates.
enum class Phase { kTraining, kEvaluation };

// The output of the last stage for a micro-batch; equal on all tensor-parallel ranks.
struct MicrobatchOutput {
  // fp32 [t]: -log p of each token's target, 0 where the target is ignored. Tokens are ordered as in batch.layout, so
  // the log-probability of a whole sequence is a sum over its tokens (preference pairs: the chosen half, then the
  // rejected half).
  at::Tensor token_losses;
  // bool [t]: the token's target is also the likeliest token. Undefined unless wanted, and whenever projection and loss
  // are fused into one operation (cross_entropy_loss_fusion).
  at::Tensor correct;
};

// A number to report: Σ sum / Σ weight over the micro-batches of all data-parallel ranks.
struct MicrobatchMetric {
  std::string name;
  at::Tensor sum;     // scalar
  double weight = 0;  // over all context-parallel ranks together
};

// A loss of the model's own (multi-token prediction) that is trained and reported beside the main one.
struct AttachedLoss {
  std::string name;
  at::Tensor sum;     // scalar, over `count` tokens
  int64_t count = 0;  // over all context-parallel ranks together
  double factor = 0;  // its weight relative to the main loss
};

// The loss of one micro-batch, with its graph while it is needed for backward.
struct MicrobatchLoss {
  at::Tensor sum;     // the scalar that backward starts from: summed loss of `count` items (tokens, pairs)
  int64_t count = 0;  // over all context-parallel ranks together
  std::vector<MicrobatchMetric> metrics = {};
  std::vector<AttachedLoss> attached = {};
  std::optional<ops::HostScalar> on_host = {};  // the copy of `sum`, once it has been requested

  double value() const { return on_host ? on_host->value() : ops::HostScalar(sum).value(); }  // `sum`; may wait
};

// Returns the names of a model's attached losses: mtp_1_loss, …
std::vector<std::string> attached_loss_names(const model::ModelConfig& config);
// Makes the chunk with the head run its multi-token-prediction layers on the micro-batch and write their losses to
// `token_losses`, which outlives the pass.
void request_mtp(const data::MicroBatch& batch, const model::GptModel& chunk, std::vector<at::Tensor>& token_losses,
                 model::ModelInput& input);
// Returns the losses of the multi-token-prediction layers, from the outputs of GptModel::forward for a micro-batch.
std::vector<AttachedLoss> mtp_losses(const model::ModelConfig& config, const std::vector<at::Tensor>& token_losses,
                                     const data::MicroBatch& batch);

// Language modeling; derived classes override what differs. One thread per rank; every rank has its own object.
class Objective {
 public:
  virtual ~Objective() = default;

  // Returns the names of the metrics that loss() may report besides the loss; the same on every rank and stage.
  virtual std::vector<std::string> metrics_keys(Phase phase) const;
  // Returns the names of the extra tensors that the functions below read (MicroBatch::extra). A micro-batch without
  // them is refused on every rank of its replica before any of its tokens is used.
  virtual std::vector<std::string> extra_keys() const { return {}; }
  // Returns whether loss() reads MicrobatchOutput::correct.
  virtual bool wants_correct(Phase phase) const { return phase == Phase::kEvaluation; }
  // Returns whether the loss is a mean of -log p, so that its exponential is a perplexity.
  virtual bool has_perplexity() const { return true; }

  // Returns whether loss() is the plain sum of the token losses, so that their gradient is known before the forward
  // pass. True for this class itself, and for derived classes that say so.
  virtual bool sums_token_losses() const;
  // Returns whether a training pass is device work alone, which follows from the micro-batch's shape, its number of
  // labels and the contents of its tensors: then it may be recorded as a CUDA graph and replayed for micro-batches of
  // the same shape, without calling run_stage() and run_head() again. Neither the host's state nor the micro-batch's
  // number may matter, and nothing may read values on the host. Extra tensors are replaced like ids and labels.
  virtual bool recordable() const { return sums_token_losses(); }
  // Sets the factor by which backward scales the loss of a micro-batch with `count` labels; an empty function means
  // that it is not known in advance.
  void set_loss_grad(std::function<double(int64_t count)> of) { loss_grad_ = std::move(of); }

  // Shows the copies of micro-batches to the device in the lane kCopies. `trace`, nullptr for none, must live until it
  // is replaced.
  void set_trace(TraceRecorder* trace) { trace_ = trace; }

  // Returns whether the model's own further losses (multi-token prediction) are trained beside this one.
  virtual bool trains_attached() const { return true; }

  // Called on every rank before the micro-batches of a step (or of an evaluation group) run, with the whole
  // micro-batches; the functions below get context-parallel slices. May run other models and use collectives: this is
  // where log-probabilities of a reference model are computed and kept for loss().
  virtual void begin(std::span<const data::MicroBatch> /*batches*/, Phase /*phase*/) {}

  // Returns the model's input for a chunk: token ids and images when the chunk has the embedding, targets when it has
  // the head. `hidden` comes from the previous stage.
  virtual model::ModelInput inputs(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                   Phase phase) const;

  // Runs a chunk without the head. Returns the hidden states for the next stage.
  virtual at::Tensor run_stage(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                               int microbatch, Phase phase) const;
  // Runs the chunk with the head: its forward pass and loss(). A micro-batch without samples, which fills up an
  // evaluation group, takes part and has a loss of count 0.
  virtual MicrobatchLoss run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                  int microbatch, Phase phase) const;

  // Computes the loss of one micro-batch; called once per micro-batch on the last stage. `microbatch` is its number in
  // the step, as in begin().
  virtual MicrobatchLoss loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                              Phase phase) const;

 protected:
  // Returns ModelInput::loss_grad of a micro-batch in training; std::nullopt unless sums_token_losses() and the factor
  // is known.
  std::optional<double> known_loss_grad(const data::MicroBatch& batch) const;

 private:
  std::function<double(int64_t count)> loss_grad_;
  TraceRecorder* trace_ = nullptr;
};

}  // namespace megalith::train
