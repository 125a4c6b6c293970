// resolve() turns what a user wrote into what a run will do, and reports every problem at once.
//
//   run::RunWords words;
//   words.read(config::Dialect::kTrain, arguments);             // run_words.h
//   const run::RunPlan plan = run::resolve(words.request());
#pragma once

#include "megalith/config/derive.h"
#include "megalith/config/option_report.h"
#include "megalith/config/training_arguments.h"
#include "megalith/run/resolve/run_plan.h"

namespace megalith::run {

// The kinds of runs; each reads other options and inputs.
enum class Work {
  kTrain,     // fine-tune the model of a folder: `megalith train`
  kPretrain,  // train a model that options describe: `megalith pretrain`
  kEvaluate,  // evaluate without training: `megalith eval`
  kTeach,     // run the teacher over the data that a model would be trained on: `megalith distill`
};

// The input of resolve(): options as given, and what the caller knows about ranks and its own parts.
struct RunRequest {
  Work work = Work::kTrain;
  config::TrainingArguments options;  // as given, before derive()
  config::OptionReport report;        // status of each given option
  RunWorld world;
  bool begins_run = true;  // output_dir must be empty, unless it is to be overwritten or resumed
  bool restarted = false;  // not the first start of this job: its batch size may have grown
  RunSwitches switches;
  OwnParts own;  // for kTrain and kEvaluate
  // The program brings its datasets (kPretrain: PretrainFunctions), so options need not name any.
  bool own_datasets = false;
  bool own_model = false;  // kPretrain: PretrainFunctions brings the model; its memory is not checked
};

// Checks the options together and returns them normalized, without looking at any file. Throws ConfigError that lists
// every problem: options that are refused or not implemented yet, and options that contradict each other.
config::EffectiveArguments effective_options(const RunRequest& request);

// Returns the plan of a run. Finds the model, the reference, tokenizer, template and datasets, the output folder and
// the checkpoint to resume. Throws ConfigError that lists every problem with options and files, one per line; DataError
// if only files are at fault. Writes nothing and needs no ranks.
RunPlan resolve(const RunRequest& request);

}  // namespace megalith::run
