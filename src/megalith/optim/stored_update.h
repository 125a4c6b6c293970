// Updates state that is kept in formats other than fp32 (ops/update/stored_values.h). Update rules compute in fp32, so
// the state is widened, updated and rounded again in pieces that fit into a cache. No fp32 copy of the whole state ever
// exists, and every rule works with every format.
//
//   stored state   | 8-bit or 16-bit elements ....................................... |
//                        | piece |
//                  read_values   write_values
//                        v       ^
//   fp32 scratch         | piece |  <- UpdateRule::update_runs
#pragma once

#include <span>
#include <vector>

#include "megalith/ops/update/stored_values.h"
#include "megalith/optim/rules/update_rule.h"

namespace megalith::optim {

// The elements of one update, as FlatElements, but as they are stored.
struct StoredElements {
  ops::StoredValues main;
  at::Tensor grad;
  std::vector<ops::StoredValues> states{};
  at::Tensor param{};  // undefined if the model reads main, or main.high
  at::Tensor gate{};
};

// Calls rule.update_runs for the elements: directly if all of them are fp32, otherwise piece by piece. `param` is
// rounded from main as it is stored, so that the two agree after a checkpoint as well.
void update_stored(const UpdateRule& rule, const StoredElements& elements, std::span<const ops::UpdateRun> runs);

}  // namespace megalith::optim
