// Finds the adapters of a run's model from its options.
#pragma once

#include <filesystem>
#include <optional>

#include "megalith/config/training_arguments.h"
#include "megalith/model/adapter.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::run {

// Uses adapter_name_or_path, adapter_folder, create_new_adapter and the lora options. When a run continues, the adapter
// in `checkpoint` replaces the trained one. Throws ConfigError for folders that hold no adapter.
model::AdapterSource adapter_source(const config::TrainingArguments& args,
                                    const std::optional<std::filesystem::path>& checkpoint = std::nullopt);

// Returns the configuration of a new adapter with the targets as given; model::resolve_targets finds them in a model.
// In stages rm and cls it also trains the head that scores sequences.
peft::AdapterConfig new_adapter(const config::TrainingArguments& args);

}  // namespace megalith::run
