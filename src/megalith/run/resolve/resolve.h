// resolve: from what a user wrote to what a run will do, with every problem told at once.
//
//   run::RunWords words;
//   words.read(config::Dialect::kTrain, arguments);             // run_words.h
//   const run::RunPlan plan = run::resolve(words.request());
#pragma once

#include "megalith/config/derive.h"
#include "megalith/config/option_report.h"
#include "megalith/config/training_arguments.h"
#include "megalith/run/run_plan.h"

namespace megalith::run {

enum class Work {
  kTrain,     // fine-tune the model of a folder: `megalith train`
  kPretrain,  // train a model that options describe: `megalith pretrain`
  kEvaluate,  // nothing but evaluation: `megalith eval`
};

struct RunRequest {
  Work work = Work::kTrain;
  config::TrainingArguments options;  // as they were given
  config::OptionReport report;        // what became of each of them
  RunWorld world;
  bool begins_run = true;  // output_dir must not hold another run
  bool restarted = false;  // the job was started before: its batch may have grown already
  RunSwitches switches;
  OwnParts own;               // kTrain, kEvaluate
  bool own_datasets = false;  // kPretrain: PretrainFunctions brings them, and options need not name any
  bool own_model = false;     // likewise; its memory is not planned
};

// The options, checked together, with every normalisation applied. No file is looked at. Throws ConfigError with every
// problem: options that are refused or not built yet, and those that do not go together.
config::EffectiveArguments effective_options(const RunRequest& request);

// The plan of a run. Finds the model, its reference, tokenizer, template and datasets, the folder it writes to and the
// checkpoint it continues. Throws ConfigError with every problem, one a line, of options and files alike; DataError when
// files alone are wrong. Nothing is written, and no rank is needed.
RunPlan resolve(const RunRequest& request);

}  // namespace megalith::run
