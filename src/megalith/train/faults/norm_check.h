// Checks that the gradients of a step reach their global norm in a given layout.
#pragma once

#include <string>
#include <vector>

#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

// Takes a few small parameters of each kind (split over tp, replicated, tied over stages, experts) through the end of a
// step: reduction over replicas, sums over tp and tied stages, division by the tokens of the batch, gradient norm,
// count of zeros, and the gathering of parameters; first without the distributed optimizer, then with it. Everything
// runs on the context's device, as in training.
//
// Collective over the world. Returns the problems found on this rank, one sentence each; throws whatever an operation
// throws.
std::vector<std::string> check_gradient_norm(const parallel::ParallelContext& context);

}  // namespace megalith::train
