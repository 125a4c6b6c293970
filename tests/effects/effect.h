// The effects test: `implemented` is a promise that changing the option changes what it should. One row per option: two
// sets of words, and a function that observes what they do: in a run where the option acts there (watched_run.h), else
// in the part of the program that it is for. Options that nothing in this process can observe are named, each with the
// test that does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"

namespace megalith::testing {

using Words = std::vector<std::string>;
// Returns the effect of the arguments, as text. The same arguments give the same text.
using Observe = std::function<std::string(const config::TrainingArguments&)>;

// A row of the test: the text of `observe` must differ between the two values of the option.
struct Effect {
  const char* option;
  Words base;     // common to both
  Words without;  // the option at one value …
  Words with;     // … and at another
  Observe observe;
  config::Dialect dialect = config::Dialect::kTrain;
};
using Effects = std::vector<Effect>;

// An option whose effect needs a GPU or processes of its own, and the test that observes it there.
struct ShownElsewhere {
  const char* option;
  const char* file;  // from the root of the repository
  const char* test;  // as its source writes it: "Suite, Test"
};
std::vector<ShownElsewhere> effects_shown_elsewhere();

Effects layout_effects();      // ranks, seeds, batches, layers, schedules, communication
Effects model_effects();       // source, precision, memory and messages of the model
Effects moe_effects();         // experts and their routers
Effects fp8_effects();         // products in fp8
Effects vocabulary_effects();  // tokens and rows that a run adds
Effects scratch_effects();     // models and tokenizers that options describe
Effects optimizer_effects();   // update rule, gradient buffers, loss scale
Effects schedule_effects();    // learning rate and weight decay over the run
Effects data_effects();        // datasets, templates, packing, samplers
Effects indexed_effects();     // .bin/.idx files
Effects flow_effects();        // how long a run is, and when it logs, evaluates and saves
Effects show_effects();        // the output of a run
Effects training_effects();    // the numbers of a tiny run
Effects pretrain_effects();    // pretrain() and the checks before it
Effects checkpoint_effects();  // saving, keeping and continuing
Effects local_save_effects();  // checkpoints on the disks of single machines
Effects command_effects();     // the command around the trainer
Effects fault_effects();       // bad results, slow ranks, late collectives
Effects lora_effects();        // adapters
Effects preference_effects();  // pairs of answers and their reference
Effects scoring_effects();     // rewards and labels
Effects teacher_effects();     // distillation
Effects record_effects();      // texts and histograms

// Returns the rows of all topics.
inline Effects all_effects() {
  Effects all;
  for (const auto& part :
       {layout_effects,     model_effects,     moe_effects,      fp8_effects,      vocabulary_effects,
        scratch_effects,    optimizer_effects, schedule_effects, data_effects,     indexed_effects,
        flow_effects,       show_effects,      training_effects, pretrain_effects, checkpoint_effects,
        local_save_effects, command_effects,   fault_effects,    lora_effects,     preference_effects,
        scoring_effects,    teacher_effects,   record_effects})
    for (Effect& effect : part()) all.push_back(std::move(effect));
  return all;
}

}  // namespace megalith::testing
