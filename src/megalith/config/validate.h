// Every cross-check between arguments, in one place.
//
// Nothing is changed here; derive() does what the reference corrects silently or with a warning. Where the reference
// rejects something only because of its implementation, Megalith accepts it (docs/mapping.md): uneven layer splits,
// packed lengths, sequence_packing without transformer_engine, variable_seq_lengths with the allgather dispatcher,
// environment variables of the CUDA driver, combinations of its checkpoint formats.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/config/training_arguments.h"

namespace megalith::config {

// Facts that the caller knows besides the arguments.
struct ValidationContext {
  std::optional<int> world_size;  // if known, the rank grid and the batch are checked too
  bool needs_inputs = true;       // model, data, length and learning rate must be given; false for a preview
};

// Returns every violation: what was given, why it is impossible, what to change. Empty if the arguments fit together.
std::vector<std::string> problems(const TrainingArguments& args, const ValidationContext& context = {});

// Throws ConfigError listing all of them, one per line.
void validate(const TrainingArguments& args, const ValidationContext& context = {});

}  // namespace megalith::config
