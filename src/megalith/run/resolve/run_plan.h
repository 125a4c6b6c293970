// RunPlan: what a run will do, decided once and never changed. The code that runs it (run.h) reads nothing else.
//
//   const run::RunPlan plan = run::resolve(request);           // resolve/resolve.h: reports every problem at once
//   return run::launch_training(plan, launch);                 // run.h
//
// A plan is made before ranks exist, and all ranks share it. No member is left out to mean "the default", and none
// depends on which front end was used.
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
#include "megalith/optim/rules/update_rule.h"
#include "megalith/optim/schedule/lr_schedule.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/vocabulary/run_vocabulary.h"
#include "megalith/train/objectives/objective.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/settings/distillation_settings.h"
#include "megalith/train/settings/preference_settings.h"
#include "megalith/train/settings/scoring_settings.h"

namespace megalith::run {

// The model, and where its weights come from.
struct ModelPlan {
  std::filesystem::path folder;                   // holds config.json and weights; empty if options describe the model
  model::ModelConfig config;                      // config.json with the changes that options ask for
  RunVocabulary vocabulary{};                     // its tokenizer, and the rows that the model has for it
  bool fresh = false;                             // weights are drawn from the seed instead of read
  std::optional<model::AdapterSource> adapter{};  // trained in place of the model; std::nullopt: train the model
};

// The source of a fine-tuning run's samples, and the way in which they become micro-batches.
struct DataPlan {
  data::DataRequest request;        // files to read, and how records become tokens
  data::CollatorOptions collator;   // padding and alignment of micro-batches
  data::CollateFunction collate{};  // the program's own collator, which may call the built-in one
  data::SamplerOptions order;       // order of the samples; its size is set when the data is open
  bool trains = true;               // false: only evaluation data is read
  bool streams = false;             // training data is read during training, not before it
};

// Stages dpo and kto: the loss over answers, and the reference model they are compared with.
struct PreferencePlan {
  // The source of the reference's log-probabilities.
  enum class Reference {
    kNone,          // the loss needs none
    kModel,         // a second model, from `folder`
    kBelowAdapter,  // the policy with its trained adapter switched off
    kPrecomputed,   // a model from `folder` that scores the data before training and is then freed
  };
  train::PreferenceSettings loss;
  std::optional<train::KtoSettings> kto{};  // stage kto, in place of `loss`
  Reference reference = Reference::kNone;
  std::filesystem::path folder;                 // ref_model, or the policy's own
  std::vector<std::filesystem::path> adapters;  // merged into the reference
  bool fresh = false;                           // the reference gets random weights from the seed
  std::filesystem::path cache;                  // keeps precomputed scores; if empty, they are not kept
};

// Stages rm and cls: the loss of a model that scores sequences. Exactly one of the two is set.
struct ScoringPlan {
  std::optional<train::RewardSettings> rewards{};
  std::optional<train::LabelSettings> labels{};
};

// Training towards a teacher: a model, or files with its likeliest tokens.
struct DistillationPlan {
  train::DistillationSettings loss;
  std::filesystem::path folder;                        // holds the teacher; empty with files
  std::shared_ptr<const model::ModelConfig> config{};  // as it is built; nullptr with files
  std::filesystem::path files{};                       // empty with a model
};

// The parts that a program replaces by its own. Whatever it leaves empty follows the options.
struct OwnParts {
  // Reads model folders of this model_type; a family may bring layers and a head of its own.
  std::shared_ptr<const model::Family> family{};
  data::CollateFunction collate{};  // turns samples into a micro-batch, in training and evaluation
  // Makes the objective. Called on every rank after the model is loaded; `models` outlives the objective.
  std::function<std::unique_ptr<train::Objective>(model::VirtualModels& models)> objective{};
  // The optimizer and its learning rate: see train::TrainerSetup.
  std::shared_ptr<const optim::UpdateRule> update_rule{};
  optim::RateFunctions rates{};
  // Makes callbacks in addition to progress line, metrics and files. Called on every rank after the model is loaded.
  std::function<std::vector<std::unique_ptr<train::TrainerCallback>>(model::VirtualModels& models)> callbacks{};
};

struct RunPlan {
  RunSettings settings;
  ModelPlan model;
  DataPlan data;                               // for fine-tuning and evaluation
  std::optional<PreferencePlan> preference{};  // stages dpo and kto
  std::optional<ScoringPlan> scoring{};        // stages rm and cls
  std::optional<DistillationPlan> distillation{};
  OwnParts own;  // for fine-tuning and evaluation
  // The user's options, normalized: written to args.yaml, and for programs that look at options. The library acts on
  // the members above only.
  config::TrainingArguments options;
  std::vector<std::string> warnings;  // one per option whose value differs from what the user wrote
};

}  // namespace megalith::run
