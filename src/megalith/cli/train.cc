// `megalith train`: arguments, checks, ranks.
#include "megalith/base/log.h"
#include "megalith/cli/command.h"
#include "megalith/cli/launch_flags.h"
#include "megalith/cli/plan_inputs.h"
#include "megalith/cli/rank_main.h"
#include "megalith/cli/stop_on_signal.h"
#include "megalith/cli/training_inputs.h"
#include "megalith/cli/training_run.h"
#include "megalith/config/derive.h"
#include "megalith/model/auto_model.h"
#include "megalith/model/families/family.h"
#include "megalith/train/shared_folder.h"
#include "megalith/train/simulated_fault.h"

namespace megalith::cli {

int run_train(Words words) {
  LaunchFlags launch;
  RunFlags flags;
  auto args = read_run_arguments(config::Dialect::kTrain, "train", words, launch, flags);
  if (!args) return kDone;
  *args = resumed_arguments(*args, comm::launch_from_env());
  check_schedule(*args, launch.world_size());
  const TrainingInputs inputs = check_inputs(*args);
  check_output_folder(args->save, launch.begins_run());
  check_resume(args->save);
  launch.ends_in_order = true;
  return launch.run([&](const comm::RankLaunch& started) {
    const StopOnSignal stop;
    const config::TrainingArguments mine = resumed_arguments(*args, started);
    return run_as_rank(mine, [&](parallel::ParallelContext& context) {
      open_rank_log(mine, context.rank());
      if (mine.save.output_dir) train::check_shared_folder(*mine.save.output_dir, context.world());
      train::RunData data = train::open_run_data(mine, inputs.tools);
      if (context.rank() == 0)
        for (const std::string& report : data.reports) log_info("{}", report);
      check_memory(model::with_arguments(model::read_model_config(inputs.model_folder), mine), mine, context,
                   planned_length(mine), flags.force);
      const auto checkpoint = find_resume(mine.save, context);
      precompute_reference(inputs, mine, context, data);
      model::VirtualModels models = load_model(inputs.model_folder, mine, context, checkpoint);
      RunParts parts;
      parts.setup.objective = preference_objective(inputs, mine, models);
      parts.launch = started;
      if (checkpoint) parts.setup.resume = train::read_resume_point(*checkpoint, mine, context);
      parts.setup.train_data = std::move(data.train);
      parts.setup.eval_data = std::move(data.eval);
      parts.setup.assets = inputs.model_folder;
      parts.setup.stop = &stop.flag();
      parts.data = {std::move(data.described), mine.data.cutoff_len};
      const auto fault = train::simulate_fault_from_env(context, started.restarts, parts.setup);
      run_training(models, mine, flags, std::move(parts));
    });
  });
}

}  // namespace megalith::cli
