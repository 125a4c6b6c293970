// forward_step: what a program brings to pretrain() in place of the language-modelling loss (Megatron's
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

struct ForwardStepInput {
  const data::MicroBatch& batch;  // what the data iterator would have given
  const model::GptModel& chunk;   // of the model: hidden states come out, or, with the head, losses or logits
  model::ModelInput input;        // ready for chunk.forward: ids, hidden states of the stage before, targets
  int microbatch = 0;             // its number in the step
  Phase phase = Phase::kTraining;
};

// What a loss function gives. Per token: the sum over this rank's tokens, and their number (batch.loss_tokens). Without
// a number: a mean, every micro-batch counts the same.
struct LossResult {
  at::Tensor loss;  // scalar to go back from
  std::optional<int64_t> num_tokens{};
  // Further numbers of the log line, of names that were announced (PretrainFunctions::report_keys): sum and weight, or
  // a value with weight 1.
  std::vector<MicrobatchMetric> report{};
};
using LossFunction = std::function<LossResult(const at::Tensor& output)>;

struct ForwardStepResult {
  at::Tensor output;  // of the chunk; hidden states where the chunk has no head
  LossFunction loss;  // called where the chunk has the head; may be empty elsewhere
  // What of an evaluation's output is kept for process_non_loss_data; empty: nothing.
  std::function<at::Tensor(const at::Tensor& output)> non_loss_data{};
};
using ForwardStep = std::function<ForwardStepResult(const ForwardStepInput& step)>;

// Language modelling: the sum of the token losses.
ForwardStepResult gpt_forward_step(const ForwardStepInput& step);

// An Objective that runs a forward step. One thread a rank.
class ForwardStepObjective : public Objective {
 public:
  struct Settings {
    ForwardStep forward_step = gpt_forward_step;
    std::vector<std::string> report_keys{};  // names that LossResult::report may have
    std::vector<std::string> extra_keys{};   // extra tensors that forward_step reads
    bool perplexity = true;                  // the loss is a mean of -log p
    bool per_token = false;                  // calculate_per_token_loss: num_tokens is needed
  };
  explicit ForwardStepObjective(Settings settings) : settings_(std::move(settings)) {}

  // Of the last group of micro-batches that was evaluated, on a last stage.
  const std::vector<at::Tensor>& non_loss_data() const { return non_loss_data_; }

  std::vector<std::string> metrics_keys(Phase /*phase*/) const override { return settings_.report_keys; }
  std::vector<std::string> extra_keys() const override { return settings_.extra_keys; }
  bool wants_correct(Phase /*phase*/) const override { return false; }
  bool has_perplexity() const override { return settings_.perplexity; }
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
