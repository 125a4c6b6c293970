// `megalith pretrain`: pretrain_gpt.py's options, checked; ranks; pretrain().
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/cli/command.h"
#include "megalith/cli/launch_flags.h"
#include "megalith/cli/out_of_memory.h"
#include "megalith/cli/plan_inputs.h"
#include "megalith/cli/rank_main.h"
#include "megalith/cli/stop_on_signal.h"
#include "megalith/cli/training_run.h"
#include "megalith/data/gpt/data_sources.h"
#include "megalith/model/from_arguments.h"
#include "megalith/train/pretrain.h"

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
model::ModelConfig check_pretrain_inputs(const config::TrainingArguments& args, const LaunchFlags& launch) {
  const auto tokenizer = train::make_run_tokenizer(args);
  check<ConfigError>(tokenizer.has_value(),
                     "there is no tokenizer; set tokenizer_type with tokenizer_model, or vocab_file with merge_file, or"
                     " vocab_size for data without text");
  const model::ModelConfig model = model::config_from_arguments(args, tokenizer->vocabulary());
  const data::DataSources sources = data::read_data_sources(args.indexed);
  if (sources.all) check_files(*sources.all);
  for (const auto& blend : sources.by_split)
    if (blend) check_files(*blend);
  train::find_load(args);
  check_output_folder(args.save, launch.begins_run());
  return model;
}

std::vector<std::pair<std::string, std::string>> describe(const data::PerSplit<int64_t>& samples, int64_t evaluation) {
  return {{"train", fmt::format("{} samples", samples[0])},
          {"evaluation", fmt::format("{} samples each time", evaluation)}};
}

void pretrain_on_rank(const config::TrainingArguments& args, const RunFlags& flags, const train::StopFlag& stop,
                      const comm::RankLaunch& launch, parallel::ParallelContext& context) {
  train::RunContext run(args, {.stop = &stop,
                               .heartbeat = launch.heartbeat,
                               .rejection_tracker = flags.result_rejected_tracker_filename.value_or(""),
                               .context = &context});
  const WorldTrace traced(context.world(), run.timers());
  run.finish_mpu_init();
  const auto watch = [&](train::RunContext& mine, model::VirtualModels& models) {
    const auto samples = train::samples_needed(args, mine.microbatches());
    const DataSummary data{describe(samples, train::samples_of_evaluation(args, mine.microbatches())),
                           args.shape.seq_length.value_or(0)};
    return watch_run(models, args, flags, data, mine.timers(), launch);
  };
  const train::PretrainOutput output = train::pretrain(run, {.callbacks = watch});
  if (output.end != train::PretrainEnd::kSkipped) say_end(context, args, output.state, output.training);
  if (context.rank() != 0) return;
  if (const auto loss = output.test.find("test_loss")) log_info("loss on the test set: {:.6E}", *loss);
}

}  // namespace

int run_pretrain(Words words) {
  LaunchFlags launch;
  RunFlags flags;
  auto args = read_run_arguments(config::Dialect::kPretrain, "pretrain", words, launch, flags);
  if (!args) return kDone;
  *args = resumed_arguments(*args, comm::launch_from_env());
  check_schedule(*args, launch.world_size());
  const model::ModelConfig model = check_pretrain_inputs(*args, launch);
  launch.ends_in_order = true;
  return launch.run([&](const comm::RankLaunch& started) {
    const StopOnSignal stop;
    return run_as_rank(*args, [&](parallel::ParallelContext& context) {
      const BegunRun run = begin_run(*args, started, context);
      check_memory(model, run.args, context, planned_length(run.args), flags.force);
      explain_out_of_memory(
          run.args, [&] { return memory_facts(model, run.args, context, planned_length(run.args)); },
          [&] { pretrain_on_rank(run.args, flags, stop.flag(), run.launch, context); });
    });
  });
}

}  // namespace megalith::cli
