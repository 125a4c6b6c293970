// The choices of a router, sorted by expert: which row each copy of a token gets.
//
// Legend: t tokens, k experts a token, E experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megalith/ops/moe/permute.h"

namespace megalith::ops {

struct SortedChoices {
  RowMap map;        // a row for every choice: those of expert 0 first, in the order of the tokens
  at::Tensor first;  // int64 [E + 1]: expert e has rows first[e] … first[e+1]-1; on the device of the choices
};
// experts int64 [t, k], all in [0, count). No wait for the device.
SortedChoices sort_choices(const at::Tensor& experts, int64_t count);

}  // namespace megalith::ops
