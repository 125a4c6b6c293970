// Checks weights before work is spent on them: names and shapes before anything is read, values while they are read.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "megalith/hf/non_finite.h"
#include "megalith/model/families/family.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

// Returns the towers that a model has.
TowerChoice towers_of(const ModelConfig& config);
// Throws DataError if the files lack a tower that is needed, though config.json in their folder describes it: a run
// from scratch has, and so exports, only those that its data needs.
void require_towers(const TowerChoice& needed, const std::filesystem::path& folder,
                    const std::shared_ptr<const Family>& own = {});

// Checks that a folder holds the weights of the model that its config.json describes: every file is there and whole,
// and names, shapes and types fit. A tower may be missing as a whole unless it is `needed`. Reads headers only. Throws
// DataError.
void check_weight_files(const std::filesystem::path& folder,
                        const TowerChoice& needed = {.vision = false, .audio = false},
                        const std::shared_ptr<const Family>& own = {});

// Checks that a checkpoint can continue the training of a model: both are of one type, with the same tensors. The
// vocabulary may differ, since it may have grown, and so may multi-token-prediction layers. Reads config.json only.
// Throws DataError that says what differs.
void check_same_model(const std::filesystem::path& checkpoint, const ModelConfig& config);

// Throws DataError, the same on all ranks, if any rank has found values that are not finite in the weights of `folder`.
// Rectangles that several ranks hold count once. Collective over all ranks.
void require_finite(const std::vector<hf::NonFiniteValues>& found, const std::filesystem::path& folder,
                    const parallel::ParallelContext& context);

}  // namespace megalith::model
