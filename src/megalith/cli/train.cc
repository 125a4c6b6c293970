// `megalith train`: arguments, checks, ranks.
#include "megalith/base/log.h"
#include "megalith/cli/command.h"
#include "megalith/cli/launch_flags.h"
#include "megalith/cli/rank_main.h"
#include "megalith/cli/stop_on_signal.h"
#include "megalith/cli/training_inputs.h"
#include "megalith/cli/training_run.h"
#include "megalith/config/derive.h"

namespace megalith::cli {

int run_train(Words words) {
  LaunchFlags launch;
  RunFlags flags;
  auto args = read_run_arguments(config::Dialect::kTrain, "train", words, launch, flags);
  if (!args) return kDone;
  if (config::trains(args->run)) train::check_can_train(args->run);
  check_schedule(*args, launch.world_size());
  const TrainingInputs inputs = check_inputs(*args);
  check_output_folder(args->save);
  launch.ends_in_order = true;
  return launch.run([&] {
    const StopOnSignal stop;
    return run_as_rank(*args, [&](parallel::ParallelContext& context) {
      train::RunData data = train::open_run_data(*args, inputs.tools);
      if (context.rank() == 0)
        for (const std::string& report : data.reports) log_info("{}", report);
      model::VirtualModels models = load_model(inputs.model_folder, *args, context);
      RunParts parts;
      parts.setup.train_data = std::move(data.train);
      parts.setup.eval_data = std::move(data.eval);
      parts.setup.assets = inputs.model_folder;
      parts.setup.stop = &stop.flag();
      parts.data = {std::move(data.described), args->data.cutoff_len};
      run_training(models, *args, flags, std::move(parts));
    });
  });
}

}  // namespace megalith::cli
