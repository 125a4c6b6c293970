// `megalith train`: arguments, checks, ranks.
#include "megalith/base/log.h"
#include "megalith/cli/command.h"
#include "megalith/cli/run_arguments.h"
#include "megalith/config/derive.h"
#include "megalith/model/families/family.h"
#include "megalith/run/inputs.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/out_of_memory.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/rank_main.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/run/signals.h"
#include "megalith/run/training_run.h"
#include "megalith/train/simulated_fault.h"

namespace megalith::cli {

namespace {

// The model and its data on one rank, to the end of the run.
void train_on_rank(const run::TrainingInputs& inputs, const config::TrainingArguments& args, const run::RunFlags& flags,
                   const comm::RankLaunch& launch, const train::StopFlag& stop, run::RunData data,
                   parallel::ParallelContext& context) {
  const auto checkpoint = run::find_resume(args.save, context);
  run::precompute_reference(inputs, args, context, data);
  model::VirtualModels models = run::load_model(inputs.model_folder, args, context, checkpoint);
  run::RunParts parts;
  parts.setup.objective = run::preference_objective(inputs, args, models);
  parts.launch = launch;
  if (checkpoint)
    parts.setup.resume =
        train::read_resume_point(*checkpoint, run::trainer_settings(args, context.grid().shape()), context);
  parts.setup.train_data = std::move(data.train);
  parts.setup.eval_data = std::move(data.eval);
  parts.setup.assets = inputs.model_folder;
  parts.setup.stop = &stop;
  parts.data = {std::move(data.described), args.data.cutoff_len};
  const auto fault = train::simulate_fault_from_env(context, launch.restarts, parts.setup);
  run::run_training(models, args, flags, std::move(parts));
}

}  // namespace

int run_train(Words words) {
  run::LaunchFlags launch;
  run::RunFlags flags;
  auto args = read_run_arguments(config::Dialect::kTrain, "train", words, launch, flags);
  if (!args) return kDone;
  *args = run::resumed_arguments(*args, comm::launch_from_env());
  run::check_schedule(*args, launch.world_size());
  const run::TrainingInputs inputs = run::check_inputs(*args);
  run::check_output_folder(args->save, launch.begins_run());
  run::check_resume(args->save);
  launch.ends_in_order = true;
  return launch.run([&](const comm::RankLaunch& started) {
    const run::StopOnSignal stop;
    return run::run_as_rank(*args, [&](parallel::ParallelContext& context) {
      const run::BegunRun run = run::begin_run(*args, started, context);
      run::RunData data = run::open_run_data(run.args, inputs.tools);
      if (context.rank() == 0)
        for (const std::string& report : data.reports) log_info("{}", report);
      const model::ModelConfig model =
          run::model_overrides(run.args).applied_to(model::read_model_config(inputs.model_folder));
      run::check_memory(model, run.args, context, run::planned_length(run.args), flags.force);
      run::explain_out_of_memory(
          run.args, [&] { return run::memory_facts(model, run.args, context, run::planned_length(run.args)); },
          [&] { train_on_rank(inputs, run.args, flags, run.launch, stop.flag(), std::move(data), context); });
    });
  });
}

}  // namespace megalith::cli
