// Decides which part of an update runs beside the next forward pass. Pure arithmetic over the parts of a model (the
// embedding, each layer, the head) in the order in which a forward pass uses them.
//
//   compute        update of parts 0 … first-1 │ forward of part 0 │ part 1 │ … │ part first │ …
//   beside it                                  │ update of part first │ part first+1 │ …
//                                                                     ^ ready when its forward begins
//   products of the forward pass leave some multiprocessors free: parts 0 … spared-1
//
// Where the update of a part would not be ready in time, the whole device would wait for a few multiprocessors. So only
// as many of the last parts are left for later as a forward pass can hide.
#pragma once

#include <cstddef>
#include <span>

namespace megalith::optim {

// The work of one part.
struct PartWork {
  double side_seconds = 0;     // its update, on the multiprocessors that are left free
  double forward_seconds = 0;  // its next forward pass, at least
};

// Limits of what is left for later, in seconds of an update on the multiprocessors that are left free.
struct OverlapLimits {
  // Stays with the update on the whole device: the host, which waits for the gradient norm meanwhile, must have queued
  // the next forward pass before it ends.
  double least_first = 0;
  double least_beside = 0;  // less than this is not worth a second stream
};

struct OverlapPlan {
  size_t first = 0;   // the update of this part and of all later ones runs beside the forward pass
  size_t spared = 0;  // parts before this one leave multiprocessors free; 0 if nothing runs beside them
};

// Returns the earliest `first` with which no part has to wait for its update; the number of parts if there is none.
OverlapPlan plan_overlap(std::span<const PartWork> parts, const OverlapLimits& limits);

}  // namespace megalith::optim
