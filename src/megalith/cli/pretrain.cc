// `megalith pretrain`: pretrain_gpt.py's options, checked; ranks; pretrain().
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/cli/command.h"
#include "megalith/cli/run_arguments.h"
#include "megalith/data/gpt/data_sources.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/out_of_memory.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/pretrain.h"
#include "megalith/run/rank_main.h"
#include "megalith/run/resolve/indexed_settings.h"
#include "megalith/run/resolve/model_from_options.h"
#include "megalith/run/signals.h"
#include "megalith/run/training_run.h"

namespace megalith::cli {

namespace {

void check_files(const data::Blend& blend) {
  for (const std::string& prefix : blend.prefixes)
    for (const char* ending : {".idx", ".bin"})
      check<DataError>(std::filesystem::is_regular_file(prefix + ending),
                       "{}{} is no file; data_path takes the common beginning of a .bin and an .idx file, as"
                       " `megalith data tokenize` writes them",
                       prefix, ending);
}

// What is missing or does not fit is told once, before ranks exist. The model that the options make.
model::ModelConfig check_pretrain_inputs(const config::TrainingArguments& args, const run::LaunchFlags& launch) {
  const auto tokenizer = run::make_run_tokenizer(args);
  check<ConfigError>(tokenizer.has_value(),
                     "there is no tokenizer; set tokenizer_type with tokenizer_model, or vocab_file with merge_file, or"
                     " vocab_size for data without text");
  const model::ModelConfig model = run::model_from_options(args, tokenizer->vocabulary());
  const data::DataSources sources = run::data_sources(args.indexed);
  if (sources.all) check_files(*sources.all);
  for (const auto& blend : sources.by_split)
    if (blend) check_files(*blend);
  run::find_load(args);
  run::check_output_folder(args.save, launch.begins_run());
  return model;
}

std::vector<std::pair<std::string, std::string>> describe(const data::PerSplit<int64_t>& samples, int64_t evaluation) {
  return {{"train", fmt::format("{} samples", samples[0])},
          {"evaluation", fmt::format("{} samples each time", evaluation)}};
}

void pretrain_on_rank(const config::TrainingArguments& args, const run::RunFlags& flags, const train::StopFlag& stop,
                      const comm::RankLaunch& launch, parallel::ParallelContext& context) {
  run::RunContext run(args, {.stop = &stop,
                             .heartbeat = launch.heartbeat,
                             .rejection_tracker = flags.result_rejected_tracker_filename.value_or(""),
                             .context = &context});
  const run::WorldTrace traced(context.world(), run.timers());
  run.finish_mpu_init();
  const auto watch = [&](run::RunContext& mine, model::VirtualModels& models) {
    const auto samples = run::samples_needed(args, mine.microbatches());
    const run::DataSummary data{describe(samples, run::samples_of_evaluation(args, mine.microbatches())),
                                args.shape.seq_length.value_or(0)};
    return run::watch_run(models, args, flags, data, mine.timers(), launch);
  };
  const run::PretrainOutput output = run::pretrain(run, {.callbacks = watch});
  if (output.end != run::PretrainEnd::kSkipped) run::say_end(context, args, output.state, output.training);
  if (context.rank() != 0) return;
  if (const auto loss = output.test.find("test_loss")) log_info("loss on the test set: {:.6E}", *loss);
}

}  // namespace

int run_pretrain(Words words) {
  run::LaunchFlags launch;
  run::RunFlags flags;
  auto args = read_run_arguments(config::Dialect::kPretrain, "pretrain", words, launch, flags);
  if (!args) return kDone;
  *args = run::resumed_arguments(*args, comm::launch_from_env());
  run::check_schedule(*args, launch.world_size());
  const model::ModelConfig model = check_pretrain_inputs(*args, launch);
  launch.ends_in_order = true;
  return launch.run([&](const comm::RankLaunch& started) {
    const run::StopOnSignal stop;
    return run::run_as_rank(*args, [&](parallel::ParallelContext& context) {
      const run::BegunRun run = run::begin_run(*args, started, context);
      run::check_memory(model, run.args, context, run::planned_length(run.args), flags.force);
      run::explain_out_of_memory(
          run.args, [&] { return run::memory_facts(model, run.args, context, run::planned_length(run.args)); },
          [&] { pretrain_on_rank(run.args, flags, stop.flag(), run.launch, context); });
    });
  });
}

}  // namespace megalith::cli
