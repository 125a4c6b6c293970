// RunPlan: what a run will do, decided once. The path of a run (run.h) reads nothing else.
//
//   const run::RunPlan plan = run::resolve(request);           // resolve/resolve.h: every problem at once
//   return run::launch_training(plan, launch, flags);          // run.h
//
// A plan is made before ranks exist; all ranks have the same, and nothing changes it. No member is absent to mean "the
// default", and none tells which front end was used.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"
#include "megalith/data/collator.h"
#include "megalith/data/sft/tokenized_data.h"
#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "megalith/optim/lr_schedule.h"
#include "megalith/optim/rules/update_rule.h"
#include "megalith/run/run_settings.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/settings/preference_settings.h"

namespace megalith::run {

// The model, and where its weights come from.
struct ModelPlan {
  std::filesystem::path folder;                   // of config.json and weights; empty: options describe the model
  model::ModelConfig config;                      // as this run changes it
  bool fresh = false;                             // weights come from the seed, not from the folder
  std::optional<model::AdapterSource> adapter{};  // is trained on the model; absent: the model itself is
};

// The samples of a fine-tuning run.
struct DataPlan {
  data::DataRequest request;        // what is read, and how it becomes tokens
  data::CollatorOptions collator;   // how samples become micro-batches
  data::CollateFunction collate{};  // a program's own, around the collator
  data::SamplerOptions order;       // its size is that of the training data
  bool trains = true;               // else only evaluation data is read
  bool streams = false;             // training data is read while it is trained on
};

// Stage dpo: what is learnt from pairs of answers, and what they are compared with.
struct PreferencePlan {
  enum class Reference {
    kNone,          // the loss needs none
    kModel,         // of `folder`, beside the policy
    kBelowAdapter,  // the policy without the adapter that is trained
    kPrecomputed,   // of `folder`, run over the data before training begins
  };
  train::PreferenceSettings loss;
  Reference reference = Reference::kNone;
  std::filesystem::path folder;                 // ref_model, or the policy's own
  std::vector<std::filesystem::path> adapters;  // that are merged into it
  bool fresh = false;                           // its weights come from the seed
  std::filesystem::path cache;                  // where what was precomputed is kept; empty: nowhere
};

// What a program brings in place of the library's own; what it leaves out is as options say.
struct OwnParts {
  // For a folder whose config.json has its model_type; with it come layers and a head of the program's own.
  std::shared_ptr<const model::Family> family{};
  data::CollateFunction collate{};  // samples to a micro-batch, for training and evaluation
  // What is learnt. Called on every rank, once the model is there; it outlives the objective.
  std::function<std::unique_ptr<train::Objective>(model::VirtualModels& models)> objective{};
  // An optimizer and its rates: see train::TrainerSetup.
  std::shared_ptr<const optim::UpdateRule> update_rule{};
  optim::RateFunctions rates{};
  // What watches the run beside progress line, metrics and files. Called on every rank, once the model is there.
  std::function<std::vector<std::unique_ptr<train::TrainerCallback>>(model::VirtualModels& models)> callbacks{};
};

struct RunPlan {
  RunSettings settings;
  ModelPlan model;
  DataPlan data;                               // of a fine-tuning run
  std::optional<PreferencePlan> preference{};  // stage dpo
  OwnParts own;                                // a program's own parts of a fine-tuning run
  // What the user asked for, every normalisation applied: for args.yaml and for programs that look at options. The
  // library acts on the members above alone.
  config::TrainingArguments options;
  std::vector<std::string> warnings;  // one for each option that is not what the user wrote
};

}  // namespace megalith::run
