// Loads the models of a fine-tuning run on this rank: the one that is trained, and the reference of preferences or the
// teacher.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "megalith/model/virtual_models.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/run/resolve/run_plan.h"
#include "megalith/run/run_data.h"
#include "megalith/train/distillation/teacher_model.h"
#include "megalith/train/objectives/objective.h"

namespace megalith::run {

// Loads the model with its weights, with fresh ones, or with those of the checkpoint to resume; an adapter is likewise
// fresh, from files, or from the checkpoint. `settings` may be for any device. Collective over all ranks. Throws
// ConfigError if the checkpoint holds a whole model where an adapter is trained, or the reverse.
model::VirtualModels load_model(const ModelPlan& plan, const model::ModelSettings& settings,
                                parallel::ParallelContext& context,
                                const std::optional<std::filesystem::path>& checkpoint = std::nullopt);

// Scores `data` with the reference model and frees it, if the plan precomputes the reference; otherwise does nothing.
// Collective over all ranks; call it before the policy takes memory.
void precompute_reference(const RunPlan& plan, parallel::ParallelContext& context, RunData& data);
// Loads the teacher of a plan that has one, in the layout and precision of the model that is trained. Collective over
// all ranks.
std::unique_ptr<train::TeacherModel> load_teacher(const DistillationPlan& plan, const RunSettings& run,
                                                  parallel::ParallelContext& context);
// Returns the program's own objective, that of preferences or verdicts with its reference model, of distillation with
// its teacher or of scores, or nullptr for language modeling. `policy` outlives it. Collective over all ranks.
std::unique_ptr<train::Objective> make_objective(const RunPlan& plan, model::VirtualModels& policy);
// Returns the objective of a plan for scores. `context` outlives it.
std::unique_ptr<train::Objective> make_objective(const ScoringPlan& plan, const parallel::ParallelContext& context);

}  // namespace megalith::run
