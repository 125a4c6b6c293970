// precompute_ref_log_probs: a reference model that runs once over the data, before training, and is gone when it
// begins. What it gave is kept on disk.
//
//   <cache>/<key>/scores.safetensors   "scores", fp32 [pairs, 2]: log p of the chosen and the rejected answer
//
// The key is a hash of the reference's files, the number format and all tokens and labels of the data in their order:
// so template, cutoff_len and selection are part of it, the layout of the ranks is not. A file is there complete or not
// at all, and has a checksum.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "megalith/parallel/parallel_context.h"
#include "megalith/train/preference/reference_model.h"
#include "megalith/train/training_data.h"

namespace megalith::train {

struct ReferenceCache {
  std::filesystem::path folder;                   // empty: scores are not kept
  std::filesystem::path model;                    // folder of the reference
  std::vector<std::filesystem::path> adapters{};  // that are merged into it
  at::ScalarType dtype = at::kFloat;              // in which it computes
};
using LoadReference = std::function<std::unique_ptr<ReferenceModel>()>;

// Gives every pair of the training data, if there are any, and of the evaluation data its scores (Sample::reference):
// from the cache, or by the model that `load` makes, which is made only when something is not in the cache, and freed
// before this returns. A cache that is broken is named in a warning, and made again; so is one that cannot be written.
// Throws DataError for a reference whose log-probabilities are no numbers. Collective over all ranks.
//
// `micro_batch_size`: pairs that a forward pass takes.
void precompute_reference_scores(std::optional<TrainingData>& train, std::vector<EvalData>& eval,
                                 const LoadReference& load, const ReferenceCache& cache, int64_t micro_batch_size,
                                 const parallel::ParallelContext& context);

}  // namespace megalith::train
