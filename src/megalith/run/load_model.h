// The models of a fine-tuning run on this rank: the one that is trained, and the reference of preferences.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "megalith/model/virtual_models.h"
#include "megalith/run/run_data.h"
#include "megalith/run/run_plan.h"
#include "megalith/train/objectives/objective.h"

namespace megalith::run {

// The model with its weights, or fresh ones; to continue a run, those of its checkpoint. Its adapter is a fresh one,
// that of the plan, or the checkpoint's. `settings` for any device. All ranks call it. Throws ConfigError for a
// checkpoint of the other kind: a whole model in place of an adapter, or the other way round.
model::VirtualModels load_model(const ModelPlan& plan, const model::ModelSettings& settings,
                                parallel::ParallelContext& context,
                                const std::optional<std::filesystem::path>& checkpoint = std::nullopt);

// With a reference that is precomputed: `data` gets what it says, and it is gone. Nothing otherwise. All ranks call it,
// before the policy takes memory.
void precompute_reference(const RunPlan& plan, parallel::ParallelContext& context, RunData& data);
// What is trained: that of the program, of preferences with their reference, or nullptr: language modelling. `policy`
// outlives it. All ranks call it.
std::unique_ptr<train::Objective> make_objective(const RunPlan& plan, model::VirtualModels& policy);

}  // namespace megalith::run
