// Do the gradients of a step reach their global norm in this layout?
#pragma once

#include <string>
#include <vector>

#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

// Takes a few small parameters of each kind (split over tp, replicated, tied over stages, experts) through what ends
// every step: reduction over replicas, sums over tp and tied stages, division by the tokens of the batch, gradient
// norm, count of zeros, and the gathering of parameters; without the distributed optimizer and with it. All on the
// context's device, as in a run.
//
// Collective over the world. Returns what came out wrong on this rank, a sentence each; throws what an operation
// throws.
std::vector<std::string> check_gradient_norm(const parallel::ParallelContext& context);

}  // namespace megalith::train
