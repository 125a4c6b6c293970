// forward_step: replaces the language-modeling loss of pretrain() by one of the program's own (Megatron's
// forward_step_func and the loss function that it returns).
//
//   ForwardStepResult forward_step(const ForwardStepInput& step) {
//     return {step.chunk.forward(step.input), [&batch = step.batch](const at::Tensor& losses) -> LossResult {
//               return {.loss = losses.sum(), .num_tokens = batch.loss_tokens};
//             }};
//   }
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megalith/train/objectives/objective.h"

namespace megalith::train {

// The arguments of a forward step.
struct ForwardStepInput {
  const data::MicroBatch& batch;  // the batch that Megatron's data iterator would yield
  const model::GptModel& chunk;   // this chunk of the model: returns hidden states or, with the head, losses or logits
  model::ModelInput input;        // ready for chunk.forward: ids, hidden states of the previous stage, targets
  int microbatch = 0;             // its number in the step
  Phase phase = Phase::kTraining;
};

// The result of a loss function: with num_tokens, the sum over this rank's tokens and their number (batch.loss_tokens);
// without it, a mean, and every micro-batch counts the same.
struct LossResult {
  at::Tensor loss;  // the scalar that backward starts from
  std::optional<int64_t> num_tokens{};
  // Further numbers for the log line, under announced names (PretrainFunctions::report_keys): a sum and its weight, or
  // a value with weight 1.
  std::vector<MicrobatchMetric> report{};
};
using LossFunction = std::function<LossResult(const at::Tensor& output)>;

// The result of a forward step.
struct ForwardStepResult {
  at::Tensor output;  // output of the chunk: hidden states when the chunk has no head
  LossFunction loss;  // called where the chunk has the head; may be empty elsewhere
  // Selects the part of an evaluation's output to keep for process_non_loss_data; empty keeps nothing.
  std::function<at::Tensor(const at::Tensor& output)> non_loss_data{};
};
using ForwardStep = std::function<ForwardStepResult(const ForwardStepInput& step)>;

// Language modeling: the loss is the sum of the token losses.
ForwardStepResult gpt_forward_step(const ForwardStepInput& step);

// An Objective that runs a forward step. One thread per rank.
class ForwardStepObjective : public Objective {
 public:
  // How the forward step is used.
  struct Settings {
    ForwardStep forward_step = gpt_forward_step;
    std::vector<std::string> report_keys{};  // names that LossResult::report may have
    std::vector<std::string> extra_keys{};   // extra tensors that forward_step reads
    bool perplexity = true;                  // report a perplexity: the loss is a mean of -log p
    bool per_token = false;                  // calculate_per_token_loss: num_tokens is required
    bool recordable = false;  // Objective::recordable(): CUDA graphs may replay forward_step and its loss
  };
  // The functions are called on the thread of the rank, once per micro-batch and chunk.
  explicit ForwardStepObjective(Settings settings) : settings_(std::move(settings)) {}

  // Returns what was kept of the last group of evaluated micro-batches; filled on the last stage only.
  const std::vector<at::Tensor>& non_loss_data() const { return non_loss_data_; }

  std::vector<std::string> metrics_keys(Phase /*phase*/) const override { return settings_.report_keys; }
  std::vector<std::string> extra_keys() const override { return settings_.extra_keys; }
  bool wants_correct(Phase /*phase*/) const override { return false; }
  bool has_perplexity() const override { return settings_.perplexity; }
  // True for gpt_forward_step: the head then runs once per micro-batch, and graphs can be recorded, as in `train`. A
  // program's own function may compute any loss.
  bool sums_token_losses() const override;
  bool recordable() const override { return settings_.recordable || sums_token_losses(); }
  void begin(std::span<const data::MicroBatch> batches, Phase phase) override;
  at::Tensor run_stage(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden, int microbatch,
                       Phase phase) const override;
  MicrobatchLoss run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                          int microbatch, Phase phase) const override;

 private:
  const Settings settings_;
  mutable std::vector<at::Tensor> non_loss_data_;
};

}  // namespace megalith::train
