// Objective: what training optimises, seen from one micro-batch. The place where other kinds of training differ: a
// preference trainer derives from it; nothing else of the trainer changes. A loss of one's own, with a weight for each
// label from an extra tensor of the micro-batch:
//
//   class WeightedLoss : public train::Objective {
//     std::vector<std::string> extra_keys() const override { return {"weight"}; }
//     train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int
//     /*microbatch*/,
//                                train::Phase /*phase*/) const override {
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

#include "megalith/data/micro_batch.h"
#include "megalith/model/gpt_model.h"
#include "megalith/ops/kernel/host_values.h"

namespace megalith::train {

enum class Phase { kTraining, kEvaluation };

// What the last stage computed for a micro-batch; equal on all tensor-parallel ranks.
struct MicrobatchOutput {
  // fp32 [t]: -log p of what each token has to predict, 0 where that is ignored. Tokens stand as in batch.layout: the
  // log-probability of a whole sequence is a sum over its tokens (preference pairs: the chosen half, then the
  // rejected).
  at::Tensor token_losses;
  // bool [t]: what the token has to predict is also the likeliest. Undefined unless wanted, and where the projection
  // and the loss are one operation (cross_entropy_loss_fusion).
  at::Tensor correct;
};

// A number to report: Σ sum / Σ weight over the micro-batches of all data-parallel ranks.
struct MicrobatchMetric {
  std::string name;
  at::Tensor sum;     // scalar
  double weight = 0;  // of all context-parallel ranks together
};

// A loss of the model's own that is trained beside the main one, and reported beside it.
struct AttachedLoss {
  std::string name;
  at::Tensor sum;     // scalar, over `count` tokens
  int64_t count = 0;  // of all context-parallel ranks together
  double factor = 0;  // its weight beside the main loss
};

struct MicrobatchLoss {
  at::Tensor sum;     // scalar to go back from: the loss of `count` things (tokens, pairs), summed
  int64_t count = 0;  // of all context-parallel ranks together
  std::vector<MicrobatchMetric> metrics = {};
  std::vector<AttachedLoss> attached = {};
  std::optional<ops::HostScalar> on_host = {};  // the sum, once it has been asked for

  double value() const { return on_host ? on_host->value() : ops::HostScalar(sum).value(); }  // of the sum; may wait
};

// Names of the attached losses of a model: mtp_1_loss, …
std::vector<std::string> attached_loss_names(const model::ModelConfig& config);
// Those of its multi-token-prediction layers, from what GptModel::forward gave for a micro-batch.
std::vector<AttachedLoss> mtp_losses(const model::ModelConfig& config, const std::vector<at::Tensor>& token_losses,
                                     const data::MicroBatch& batch);

// Language modelling. Override what differs. One thread a rank; every rank has one of its own.
class Objective {
 public:
  virtual ~Objective() = default;

  // Names of the metrics besides the loss that loss() may give; the same on every rank, last stage or not.
  virtual std::vector<std::string> metrics_keys(Phase phase) const;
  // Names of the extra tensors that the functions below read from micro-batches (MicroBatch::extra). One without them
  // is refused on every rank of its replica before any of its tokens is used.
  virtual std::vector<std::string> extra_keys() const { return {}; }
  // Whether loss() looks at MicrobatchOutput::correct.
  virtual bool wants_correct(Phase phase) const { return phase == Phase::kEvaluation; }
  // Whether the loss is a mean of -log p, so that its exponential is a perplexity.
  virtual bool has_perplexity() const { return true; }

  // Whether loss() is the plain sum of the token losses, so that their gradient is known before the forward pass: true
  // of this class, and of those derived from it that say so.
  virtual bool sums_token_losses() const;
  // Told by whoever runs backward: what it multiplies the loss of a micro-batch of `count` with. Empty: unknown.
  void set_loss_grad(std::function<double(int64_t count)> of) { loss_grad_ = std::move(of); }

  // Whether the model's own further losses (multi-token prediction) are trained beside this one.
  virtual bool trains_attached() const { return true; }

  // Before the micro-batches of a step (or of a group of an evaluation) run; on every rank, which gets them whole: its
  // context-parallel slices come to the functions below. May run models of its own, by collectives too:
  // log-probabilities of a reference model are computed here and kept for loss().
  virtual void begin(std::span<const data::MicroBatch> /*batches*/, Phase /*phase*/) {}

  // What a chunk gets of a micro-batch: token ids where the chunk has the embedding, targets where it has the head.
  // `hidden` comes from the stage before.
  virtual model::ModelInput inputs(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                   Phase phase) const;

  // A chunk without the head: hidden states for the next stage.
  virtual at::Tensor run_stage(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                               int microbatch, Phase phase) const;
  // The chunk with the head: its forward pass and loss(). A micro-batch without samples, which fills a group of an
  // evaluation up, takes part and comes to a loss of count 0.
  virtual MicrobatchLoss run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                  int microbatch, Phase phase) const;

  // Called once for each micro-batch, on the last stage. `microbatch`: its number in the step, as in begin().
  virtual MicrobatchLoss loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                              Phase phase) const;

 private:
  std::function<double(int64_t count)> loss_grad_;
};

}  // namespace megalith::train
