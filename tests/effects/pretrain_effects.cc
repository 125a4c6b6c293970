// Options that act in pretrain() and in the checks before it.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/io/file_io.h"
#include "megalith/observe/observers.h"
#include "megalith/run/pretrain.h"
#include "megalith/run/resolve/load.h"
#include "megalith/run/resolve/run_settings.h"
#include "tests/effects/effect.h"
#include "tests/observe/decoded_events.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

using config::Dialect;
using config::TrainingArguments;

using Observers = std::vector<std::unique_ptr<train::TrainerCallback>>;

// The callbacks of a command, without its output.
Observers silent_observers(const run::RunContext& run, const model::VirtualModels& models) {
  observe::ObserverSetup setup;
  setup.world = models.context().world().world();
  setup.progress.write = [](std::string_view) {};
  return observe::make_observers(run.settings().reports, setup);
}

// A run on made-up data.
std::string run_pretraining(const TrainingArguments& args) {
  std::string text;
  run_ranks(1, [&](const Rank& rank) {
    run::InitializeOptions options;
    options.allow_no_cuda = true;
    options.world = &rank.world;
    const auto context = run::initialize_megatron(args, options);
    const run::PretrainOutput output = run::pretrain(*context, {.callbacks = silent_observers});
    text = fmt::format("end {} after {} steps", static_cast<int>(output.end), output.training.global_step);
  });
  return text;
}

// Bytes of activations that a run has sent to the host.
std::string offloaded(const TrainingArguments& args) {
  std::string text;
  run_ranks(1, [&](const Rank& rank) {
    const auto context = run::initialize_megatron(args, {.allow_no_cuda = true, .world = &rank.world});
    struct Ended : train::TrainerCallback {
      Ended(const model::VirtualModels& models, std::string& into) : models_(models), into_(into) {}
      void on_train_end(train::TrainerEvent&) override { into_ = fmt::format("{}", models_[0].offloaded_bytes()); }
      const model::VirtualModels& models_;
      std::string& into_;
    };
    run::pretrain(*context, {.callbacks = [&](run::RunContext&, model::VirtualModels& models) {
      Observers callbacks;
      callbacks.push_back(std::make_unique<Ended>(models, text));
      return callbacks;
    }});
  });
  return text;
}

// The steps at which the same run has a point of its loss in TensorBoard; no line is logged after the first.
std::string tensorboard_steps(TrainingArguments args) {
  const TempFolder folder;
  args.logging.logging_dir = folder.path().string();
  run_pretraining(args);
  std::string steps;
  for (const auto& file : std::filesystem::directory_iterator(folder.path()))
    for (const observe::DecodedScalar& scalar : observe::scalars_of(io::read_text_file(file.path(), 1 << 26)))
      if (scalar.tag == "lm loss") steps += fmt::format("{} ", scalar.step);
  return steps;
}

std::string pretrain_evaluation(const TrainingArguments& args) {
  const TrainingArguments effective = config::derive(args).args;
  return fmt::format("{} samples", run::samples_of_evaluation(run::run_settings(effective, {}).pretrain));
}

std::string loading(const TrainingArguments& args) {
  try {
    run::find_load(run::load_settings(args));
    return "accepted";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

Words also(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string empty_folder() {
  static const TempFolder folder;
  return folder.path().string();
}

}  // namespace

Effects pretrain_effects() {
  const Words tiny{"--num_layers=2",      "--hidden_size=16", "--num_attention_heads=2",        "--seq_length=8",
                   "--vocab_size=30",     "--train_iters=3",  "--max_position_embeddings=8",    "--lr=1e-3",
                   "--mock_data",         "--eval_iters=1",   "--tokenizer_type=NullTokenizer", "--use_cpu",
                   "--micro_batch_size=2"};
  const Words wide = also(tiny, {"--num_layers=3", "--hidden_size=64", "--seq_length=1024",
                                 "--max_position_embeddings=1024"});  // activations of 256 KiB and more
  const Words batch{"--micro_batch_size=1", "--global_batch_size=4"};
  return {
      {"cpu_offloading", wide, {}, {"--cpu_offloading"}, offloaded, Dialect::kPretrain},
      {"cpu_offloading_num_layers",
       wide,
       {"--cpu_offloading_num_layers=1"},
       {"--cpu_offloading_num_layers=2"},
       offloaded,
       Dialect::kPretrain},
      {"skip_train", tiny, {}, {"--skip_train"}, run_pretraining, Dialect::kPretrain},
      {"exit_duration_in_mins", tiny, {}, {"--exit_duration_in_mins=0"}, run_pretraining, Dialect::kPretrain},
      {"tensorboard_log_interval",
       also(tiny, {"--report_to=tensorboard", "--log_interval=100", "--train_iters=4"}),
       {"--tensorboard_log_interval=1"},
       {"--tensorboard_log_interval=2"},
       tensorboard_steps,
       Dialect::kPretrain},
      {"eval_iters", batch, {}, {"--eval_iters=7"}, pretrain_evaluation, Dialect::kPretrain},
      {"eval_global_batch_size", batch, {}, {"--eval_global_batch_size=8"}, pretrain_evaluation, Dialect::kPretrain},
      {"load", {"--exit_on_missing_checkpoint"}, {}, {"--load=" + empty_folder()}, loading, Dialect::kPretrain},
      {"exit_on_missing_checkpoint",
       {"--load=" + empty_folder()},
       {},
       {"--exit_on_missing_checkpoint"},
       loading,
       Dialect::kPretrain},
  };
}

}  // namespace megalith::testing
