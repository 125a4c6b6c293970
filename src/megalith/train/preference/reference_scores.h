// precompute_ref_log_probs: runs the reference model once over the data before training, frees it, and keeps its scores
// on disk.
//
//   <cache>/<key>/scores.safetensors   "scores", fp32 [pairs, 2]: log p of the chosen and the rejected answer
//
// The key is a hash of the reference's files, its number format, and all tokens and labels of the data in order. So it
// depends on template, cutoff_len and selection, but not on the layout of the ranks. A file is written atomically and
// has a checksum.
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

// The folder of the scores, and the model that they belong to.
struct ReferenceCache {
  std::filesystem::path folder;                   // empty if scores are not kept
  std::filesystem::path model;                    // folder of the reference model
  std::vector<std::filesystem::path> adapters{};  // adapters to merge into it
  at::ScalarType dtype = at::kFloat;              // precision of its computation
  std::string new_rows{};                         // describes rows that its files lack; empty if none
  std::optional<double> ld_alpha{};               // PreferenceSettings::ld_alpha
};
using LoadReference = std::function<std::unique_ptr<ReferenceModel>()>;

// Fills in the scores (Sample::reference) of every pair of the training data, if any, and of the evaluation data. They
// come from the cache or from the model that `load` makes, which is loaded only when something is missing and freed
// before the function returns. A broken cache is named in a warning and recomputed; one that cannot be written is named
// in a warning, too. Throws DataError if a log-probability is not a number. Collective over all ranks.
//
// `micro_batch_size` is the number of pairs per forward pass.
void precompute_reference_scores(std::optional<TrainingData>& train, std::vector<EvalData>& eval,
                                 const LoadReference& load, const ReferenceCache& cache, int64_t micro_batch_size,
                                 const parallel::ParallelContext& context);

}  // namespace megalith::train
