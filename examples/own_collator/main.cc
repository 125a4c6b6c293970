// Fine-tuning with a collator of one's own, which adds a weight for each label, a loss that reads the weights, and an
// optimizer of one's own, in any layout:
//   example_own_collator --nproc=8 --tp=2 --pp=2 --cp=2 --model_name_or_path=MODEL --dataset=data.jsonl …
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "megalith/config/derive.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/exit_code.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/rank_main.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/run/run_data.h"
#include "megalith/train/trainer.h"

namespace {

using namespace megalith;

// Long answers count less than their length says: a label of an answer with n labels weighs 1/√n.
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

// Momentum that looks ahead.
class Nesterov : public optim::UpdateRule {
  std::string name() const override { return "nesterov"; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  void update(const optim::FlatElements& x, const ops::UpdateScalars& scalars) const override {
    x.states[0].mul_(0.9).add_(x.grad);
    x.main.sub_(x.grad.add(x.states[0], 0.9), scalars.lr);
  }
};

void fine_tune(const config::TrainingArguments& args, parallel::ParallelContext& context) {
  model::VirtualModels models = model::AutoModel::from_pretrained(*args.source.model_name_or_path,
                                                                  run::model_settings(args, context.device()), context);
  run::RunData data = run::open_run_data(args, {.vocab_size = models.config().vocab_size, .collate = add_weights});
  train::TrainerSetup setup{.train_data = std::move(data.train), .eval_data = std::move(data.eval)};
  setup.objective = std::make_unique<WeightedLoss>();
  setup.update_rule = std::make_shared<Nesterov>();
  train::Trainer trainer(models, run::trainer_settings(args, context.grid().shape()), std::move(setup));
  trainer.train();
  for (const train::MetricList& line : trainer.state().log_history)
    if (const auto loss = line.find("loss"); loss && context.rank() == 0)
      fmt::print("step {}: loss {:.8f}\n", *line.find("step"), *loss);
}

}  // namespace

int main(int argc, char** argv) try {
  run::LaunchFlags launch;
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words, launch.options());
  parsed.report.check_runnable();
  launch.check(parsed.args, /*needs_inputs=*/true);
  const config::TrainingArguments args = config::derive(parsed.args).args;
  return launch.run([&] { return run::run_as_rank(args, [&](auto& context) { fine_tune(args, context); }); });
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return run::exit_code_of(error);
}
