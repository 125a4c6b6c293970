// Tells parameters that are matrices from the rest: Muon treats them differently.
#pragma once

#include <algorithm>

#include "megalith/nn/parameter/parameter.h"

namespace megalith::nn {

// Whether a parameter consists of matrices that a layer multiplies with: not embeddings, heads, norms, biases,
// convolutions.
inline bool is_matrix(const ParameterSpec& spec) {
  return spec.use != WeightUse::kOther && spec.use != WeightUse::kLookup && !spec.is_embedding_or_head &&
         !spec.parts.empty() &&
         std::ranges::all_of(spec.parts, [](const ParameterPart& part) { return part.global_shape.size() == 2; });
}

}  // namespace megalith::nn
