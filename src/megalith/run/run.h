// The one path of a run, for commands and for programs of one's own: ranks are started and looked after, signals end
// the run in order, memory is checked before it is taken, a job that was started again goes on where it was, and the
// user sees what happens.
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
// does all that `megalith train` does, with that rule in place of AdamW.
#pragma once

#include <functional>

#include "megalith/run/exit_code.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/pretrain.h"
#include "megalith/run/run_plan.h"
#include "megalith/train/report/metric_list.h"

namespace megalith::run {

// The whole of main(): calls `work`, and turns what it throws into one message on stderr and an exit code. In a build
// for CUDA the process ends here.
int run_program(const std::function<int()>& work);

// Each starts the ranks that the flags ask for, or, without --nproc, is one; returns an exit code. Call them before any
// thread exists. The plan outlives the call.

// Fine-tunes: trains, saves, exports, evaluates.
int launch_training(const RunPlan& plan, LaunchFlags launch);
// Pre-trains by pretrain(); callbacks of `functions` come beside those that show the run.
int launch_pretraining(const RunPlan& plan, LaunchFlags launch, const PretrainFunctions& functions = {});
// Evaluates; `report` gets the metrics on the first rank.
int launch_evaluation(const RunPlan& plan, const LaunchFlags& launch,
                      const std::function<void(const train::MetricList& metrics)>& report);

}  // namespace megalith::run
