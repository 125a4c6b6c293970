// Fine-tuning with the library: a model, data, a Trainer, and a custom callback.
//
//   example_sft --model_name_or_path=MODEL --dataset=data.jsonl --output_dir=out --finetuning_type=full --max_steps=10
//
// Puts the parts together by hand. run/run.h does everything that `megalith train` does: checks, launcher, files.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/config/validate.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/run_context.h"
#include "megalith/run/run_data.h"
#include "megalith/train/trainer.h"

namespace {

using namespace megalith;

// Prints each logged loss on the first rank.
class PrintLoss : public train::TrainerCallback {
  void on_log(train::TrainerEvent& event) override {
    const auto loss = event.metrics.find("loss");
    if (loss && event.state.is_world_process_zero) fmt::print("step {}: loss {:.4f}\n", event.state.global_step, *loss);
  }
};

void fine_tune(const std::vector<std::string>& words) {
  const auto run = run::initialize_megatron(words, {.dialect = config::Dialect::kTrain, .allow_no_cuda = true});
  const config::TrainingArguments& args = run->args();
  config::validate(args);  // a run needs a model, data and a length
  parallel::ParallelContext& context = run->context();

  const std::string folder = args.source.model_name_or_path.value();
  model::VirtualModels models =
      model::AutoModel::from_pretrained(folder, run::settings_on(run->settings().model, context.device()), context);
  run::RunData data = run::open_run_data(run::data_plan(args, {.vocabulary = {.size = models.config().vocab_size}}));

  train::TrainerSetup setup{.train_data = std::move(data.train), .eval_data = std::move(data.eval)};
  setup.callbacks.push_back(std::make_unique<PrintLoss>());
  train::Trainer trainer(models, run->settings().trainer, std::move(setup));
  const train::TrainOutput output = trainer.train();
  trainer.save_model(args.save.output_dir.value());
  if (context.rank() == 0) fmt::print("{} steps, mean loss {:.4f}\n", output.global_step, output.training_loss);
}

}  // namespace

int main(int argc, char** argv) try {
  fine_tune({argv + 1, argv + argc});
  run::shutdown_megatron();
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return dynamic_cast<const ConfigError*>(&error) != nullptr ? 2 : 1;
}
