// Runs a RunPlan, for the commands of `megalith` and for any other program: starts and watches the ranks, ends them in
// order on a signal, checks memory before it is taken, resumes a restarted job, and shows the user what happens.
//
//   int main(int argc, char** argv) {
//     return run::run_program([&] {
//       run::RunWords words;
//       if (!words.read(config::Dialect::kTrain, {argv + 1, argv + argc})) return run::kDone;
//       run::RunRequest request = words.request();
//       request.own.update_rule = std::make_shared<MyRule>();         // run_plan.h: OwnParts
//       return run::launch_training(run::resolve(request), words.launch());
//     });
//   }
//
// This program does all that `megalith train` does, with its own rule in place of AdamW.
#pragma once

#include <functional>

#include "megalith/run/exit_code.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/pretrain.h"
#include "megalith/run/resolve/run_plan.h"
#include "megalith/train/report/metric_list.h"

namespace megalith::run {

// The body of main(): calls `work` and returns its exit code, or turns an exception into one message on stderr and an
// exit code. In a CUDA build it ends the process instead of returning.
int run_program(const std::function<int()>& work);

// Each of these starts the ranks that --nproc asks for, or makes this process a rank without it, and returns an exit
// code. Call them before the process has other threads.

// Fine-tunes a model: trains, saves, exports and evaluates it.
int launch_training(const RunPlan& plan, LaunchFlags launch);
// Pre-trains a model with pretrain(). Callbacks of `functions` run in addition to those that report progress.
int launch_pretraining(const RunPlan& plan, LaunchFlags launch, const PretrainFunctions& functions = {});
// Evaluates a model and passes the metrics to `report` on rank 0.
int launch_evaluation(const RunPlan& plan, const LaunchFlags& launch,
                      const std::function<void(const train::MetricList& metrics)>& report);

}  // namespace megalith::run
