// Options whose effect shows in the numbers of a tiny run.
#include <fmt/format.h>

#include <set>

#include "megalith/base/error.h"
#include "tests/effects/effect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using config::TrainingArguments;

// Counts the collections of parameters that are through when an optimizer step ends.
class GatherCounter : public train::TrainerCallback {
 public:
  GatherCounter(const comm::World& world, int64_t& count) : world_(world), count_(count) {}
  void on_optimizer_step(train::TrainerEvent&) override {
    for (const std::string& operation : world_.recent_operations())
      if (operation.find("all_gather") != std::string::npos) ++count_;
  }

 private:
  const comm::World& world_;
  int64_t& count_;
};

std::string text_of(const train::MetricList& line) {
  static const std::set<std::string> kSame{"loss",      "grad_norm", "num_zeros_in_grad",     "learning_rate",
                                           "eval_loss", "epoch",     "num_input_tokens_seen", "params_norm"};
  std::string text;
  for (const auto& [name, value] : line)
    if (kSame.contains(name))
      text += fmt::format(" {} {}", name, value);
    else if (name == "effective_tokens_per_second")
      text += " " + name;
  return text + "\n";
}

// Events, lines and the evaluation at the end, on rank 0 of a run of `dp` ranks.
std::string run_training(const TrainingArguments& args, int dp) {
  const TempFolder folder;
  TrainerCase how;
  how.args = args;
  how.dp = dp;
  if (how.args.save.output_dir) how.args.save.output_dir = folder.path().string();
  const auto train = dataset_of(random_sequences(16, 50, 1)), eval = dataset_of(random_sequences(6, 50, 2));
  std::string text;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    int64_t gathers = 0;
    train::TrainerSetup setup = r.setup(train, eval);
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    setup.callbacks.push_back(std::make_unique<GatherCounter>(r.rank.world, gathers));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    std::string mine;
    try {
      trainer.train();
      trainer.evaluate();
    } catch (const ConfigError& error) {
      mine = error.what();
    }
    for (const std::string& event : heard.events) mine += event + " ";
    mine += "\n";
    for (const train::MetricList& line : heard.lines) mine += text_of(line);
    if (r.rank.rank == 0) text = mine + fmt::format("{} gathers", gathers);
  });
  return text;
}

// The names that the lines of a model with experts have for its layers.
std::string metrics_of_layers(const TrainingArguments& args) {
  TrainerCase how;
  how.args = args;
  std::string names;
  run_trainer_ranks(golden_folder("mixtral"), how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(8, 50, 1)));
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer(r.models, r.settings(), std::move(setup)).train();
    for (const auto& [name, value] : heard.lines.front())
      if (name.find("_layer_") != std::string::npos) names += name + "\n";
  });
  return names;
}

std::string one_rank(const TrainingArguments& args) { return run_training(args, 1); }
std::string two_ranks(const TrainingArguments& args) { return run_training(args, 2); }

Words small(const Words& more = {}) {
  Words words{"--finetuning_type=full", "--max_steps=3",      "--per_device_train_batch_size=2", "--logging_steps=1",
              "--learning_rate=1e-3",   "--save_strategy=no", "--lr_scheduler_type=constant"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

Effects training_effects() {
  const Words evaluates{"--eval_strategy=steps", "--eval_steps=1", "--metric_for_best_model=loss"};
  const auto also = [&](const Words& more) {
    Words words = small(evaluates);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  return {
      {"finetuning_type", small(), {}, {"--finetuning_type=lora"}, one_rank},
      {"neftune_noise_alpha", small(), {}, {"--neftune_noise_alpha=5"}, one_rank},
      {"label_smoothing_factor", small(), {}, {"--label_smoothing_factor=0.1"}, one_rank},
      {"iterations_to_skip", small(), {}, {"--iterations_to_skip=2"}, one_rank},
      {"early_stopping_steps", also({"--learning_rate=0"}), {}, {"--early_stopping_steps=1"}, one_rank},
      {"per_device_eval_batch_size", small(), {}, {"--per_device_eval_batch_size=1"}, one_rank},
      {"eval_on_start", small(), {}, {"--eval_on_start"}, one_rank},
      {"load_best_model_at_end",
       also({"--greater_is_better=true", "--save_strategy=steps", "--save_steps=1"}),
       {},
       {"--load_best_model_at_end"},
       one_rank},
      {"logging_nan_inf_filter",
       small({"--learning_rate=1e30", "--check_for_nan_in_loss_and_grad=false", "--logging_steps=3"}),
       {},
       {"--logging_nan_inf_filter=false"},
       one_rank},
      {"moe_per_layer_logging",
       small({"--moe_z_loss_coeff=0.01", "--max_steps=1"}),
       {},
       {"--moe_per_layer_logging"},
       metrics_of_layers},
      {"include_num_input_tokens_seen", small(), {}, {"--include_num_input_tokens_seen"}, one_rank},
      {"include_effective_tokens_per_second", small(), {}, {"--include_effective_tokens_per_second"}, one_rank},
      {"log_params_norm", small(), {}, {"--log_params_norm"}, two_ranks},
      {"log_num_zeros_in_grad", small(), {}, {"--log_num_zeros_in_grad"}, one_rank},
      {"overlap_param_gather",
       small({"--use_distributed_optimizer", "--overlap_grad_reduce"}),
       {},
       {"--overlap_param_gather"},
       two_ranks},
  };
}

}  // namespace megalith::testing
