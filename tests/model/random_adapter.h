// Adapters on everything that can have one, with random numbers, and a batch to run them on.
#pragma once

#include <filesystem>

#include "megalith/model/families/model_config.h"
#include "megalith/peft/adapter_config.h"
#include "tests/model/layout_case.h"

namespace megalith::testing {

// Every layer of this model that can have an update; or all but the embedding.
peft::AdapterConfig everything(const model::ModelConfig& config, bool embedding);

// Writes an adapter none of whose numbers is zero.
void write_random_adapter(const std::filesystem::path& model_folder, const std::filesystem::path& to,
                          const peft::AdapterConfig& adapter);

// Two sequences of 16 tokens; tests/data/peft has what peft computes for them with vocab 200.
TokenBatch small_batch(int64_t vocab);

}  // namespace megalith::testing
