// Fine-tuning with a custom collator, which adds a weight to each label, a loss that reads the weights, and a custom
// optimizer, in any layout. Everything else is as in `megalith train`: launcher, checks, progress, files.
//   example_own_collator --nproc=8 --tp=2 --pp=2 --cp=2 --model_name_or_path=MODEL --dataset=data.jsonl …
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "megalith/run/run.h"
#include "megalith/run/run_words.h"

namespace {

using namespace megalith;

// Long answers count less than in proportion to their length: a label of an answer with n labels weighs 1/√n.
data::MicroBatch add_weights(std::span<const data::Sample> samples, const data::Collator& built_in) {
  data::MicroBatch batch = built_in.collate(samples);
  const at::Tensor weights = batch.labels.ne(data::kIgnoredLabel).to(at::kFloat);  // [t], and 0 for padding
  const std::vector<int64_t>& ends = batch.layout.cumulative();
  for (size_t i = 1; i < ends.size(); ++i) {
    at::Tensor answer = weights.slice(0, ends[i - 1], ends[i]);
    answer.div_(answer.sum().clamp_min(1).sqrt());
  }
  batch.extras["weight"] = {weights};
  return batch;
}

class WeightedLoss : public train::Objective {
  std::vector<std::string> extra_keys() const override { return {"weight"}; }
  train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int /*microbatch*/,
                             train::Phase /*phase*/) const override {
    const at::Tensor weights = batch.extra("weight", output.token_losses.device());
    return {.sum = (weights * output.token_losses).sum(), .count = batch.loss_tokens};
  }
};

// Nesterov momentum.
class Nesterov : public optim::UpdateRule {
  std::string name() const override { return "nesterov"; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  void update(const optim::FlatElements& x, const ops::UpdateScalars& scalars) const override {
    x.states[0].mul_(0.9).add_(x.grad);
    x.main.sub_(x.grad.add(x.states[0], 0.9), scalars.lr);
  }
};

class PrintLoss : public train::TrainerCallback {
  void on_log(train::TrainerEvent& event) override {
    const auto loss = event.metrics.find("loss");
    if (loss && event.state.is_world_process_zero) fmt::print("step {}: loss {:.8f}\n", event.state.global_step, *loss);
  }
};

int fine_tune(const std::vector<std::string>& arguments) {
  run::RunWords words;
  if (!words.read(config::Dialect::kTrain, arguments, "example_own_collator")) return run::kDone;
  for (const std::string& note : words.parsed().report.notes()) fmt::print(stderr, "without effect: {}\n", note);
  run::RunRequest request = words.request();
  request.own.collate = add_weights;
  request.own.objective = [](model::VirtualModels&) { return std::make_unique<WeightedLoss>(); };
  request.own.update_rule = std::make_shared<Nesterov>();
  request.own.callbacks = [](model::VirtualModels&) {
    std::vector<std::unique_ptr<train::TrainerCallback>> callbacks;
    callbacks.push_back(std::make_unique<PrintLoss>());
    return callbacks;
  };
  return run::launch_training(run::resolve(request), words.launch());
}

}  // namespace

int main(int argc, char** argv) {
  return run::run_program([&] { return fine_tune({argv + 1, argv + argc}); });
}
