// Adapters that start as the principal singular parts of their weights (PiSSA): how a model gets such a start, and how
// it is written.
//
//   file                        holds
//   adapter_model.safetensors   A and B, relative to the residual W - s·B0·A0, as peft writes them
//   adapter_init.safetensors    A0 and B0 under the same names: the residual follows from them and the base
//
// A decomposition gives other bits on another machine, so a run that continues reads A0 and B0 instead of computing
// them again. Joined, [A; A0] and [B, -B0], both are an ordinary adapter of twice the rank for the weights W
// (converted_adapter).
#pragma once

#include <cstdint>
#include <filesystem>

#include "megalith/model/pretrained.h"
#include "megalith/model/virtual_models.h"
#include "megalith/peft/adapters.h"

namespace megalith::model {

// Whether the model has an adapter with such a start.
bool has_start(const VirtualModels& models);

// Gives a new adapter its start: A and B become principal parts of the weights, which keep the rest. The weights have
// been loaded, and adapters merged into them. Collective. Does nothing for other adapters.
void start_adapter(const VirtualModels& models, uint64_t seed);
// Does the same for an adapter that continues, with the factors in `folder`, or by computing them where they are not in
// files (peft::open_start). Collective. Does nothing for other adapters.
void restore_start(const VirtualModels& models, const std::filesystem::path& folder);
// The same for adapters outside of a model, which are merged into it. `adapters` has updates of the weights
// of a model with the configuration `config`.
void restore_start(peft::Adapters& adapters, const ModelConfig& config, const std::filesystem::path& folder);

// Returns the tensors of adapter_init.safetensors. Throws ConfigError for a model without such a start.
ExportedWeights exported_start(const VirtualModels& models);
// Returns the adapter joined with its start, for peft::without_start. Throws likewise.
ExportedWeights converted_adapter(const VirtualModels& models);

}  // namespace megalith::model
