// Updates state that is kept in formats other than fp32 (ops/update/stored_values.h). Update rules compute in fp32, so
// the state is widened, updated and rounded again in pieces that fit into a cache. No fp32 copy of the whole state ever
// exists, and every rule works with every format. Rules that have one pass over stored state (AdamW on CUDA,
// ops/update/stored_adam.h) take it instead.
//
//   stored state   | 8-bit or 16-bit elements ....................................... |
//                        | piece |
//                  read_values   write_values
//                        v       ^
//   fp32 scratch         | piece |  <- UpdateRule::update_runs
#pragma once

#include <span>
#include <vector>

#include "megalith/optim/rules/update_rule.h"

namespace megalith::optim {

// Calls rule.update_runs for the elements if all of them are fp32, otherwise rule.update_stored_runs, and where the
// rule has none, update_runs piece by piece. `param` is rounded from main as it is stored, so that the two agree after
// a checkpoint as well.
void update_stored(const UpdateRule& rule, const StoredElements& elements, std::span<const ops::UpdateRun> runs);

// Returns the runs within elements [begin, end), counted from begin.
std::vector<ops::UpdateRun> runs_within(std::span<const ops::UpdateRun> runs, int64_t begin, int64_t end);

}  // namespace megalith::optim
