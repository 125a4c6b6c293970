// Every cross-check between arguments (spec/training_args.md §4 and §6, spec/options.md), in one place.
//
// Nothing is changed here; what the reference corrects silently or with a warning is done by derive(). Where the
// reference refuses only because of its implementation, Megalith does not (docs/mapping.md): uneven layer splits,
// packed lengths, sequence_packing without transformer_engine, variable_seq_lengths with the allgather dispatcher,
// environment variables of the CUDA driver, combinations of its checkpoint formats.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"

namespace megalith::config {

struct ValidationContext {
  std::optional<int> world_size;  // known: the rank grid and the batch are checked too
  bool needs_inputs = true;       // a run: model, data, length and learning rate must be given; a preview needs none
};

// Every violation: what was given, why it cannot be, what to change. Empty when the arguments fit together.
std::vector<std::string> problems(const TrainingArguments& args, const ValidationContext& context = {});

// Throws ConfigError with all of them, one a line.
void validate(const TrainingArguments& args, const ValidationContext& context = {});

}  // namespace megalith::config
