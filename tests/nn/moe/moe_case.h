// A mixture of experts in plain ATen and fp64 on the full weights, and the same layer spread over ranks.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/moe/moe_layer.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {

// A layout of the layer.
struct MoeGrid {
  int world = 1, tp = 1, ep = 1, etp = 1;
  MoeOptions options;
  std::optional<ops::Fp8Recipe> fp8{};
  std::string name() const;
};

// Every weight of the layer by the names of its parts, drawn from a seed.
FullTensors random_moe_weights(const MoeShape& shape, uint64_t seed);

// The inputs of the ranks: x and the gradient of the output, of each rank's own tokens.
struct MoeTokens {
  std::vector<at::Tensor> x, dy;  // by rank, [t, h]; t may differ and be 0
};
MoeTokens random_tokens(const std::vector<int64_t>& counts, int64_t hidden, uint64_t seed);

// Outputs and gradients of one forward and backward.
struct MoeResult {
  std::vector<at::Tensor> y, dx;  // by rank
  FullTensors grads;              // gradients of all ranks together, by the names of the parts
};
// Every expert sees every token, and is multiplied by a weight that is mostly 0.
MoeResult dense_moe(const MoeShape& shape, const FullTensors& weights, const MoeTokens& tokens);
// `main_grads`: into attached buffers.
MoeResult spread_moe(const MoeShape& shape, const FullTensors& weights, const MoeTokens& tokens, const MoeGrid& grid,
                     bool main_grads = false);

// Expects equal outputs and gradients, up to rounding.
void expect_same(const MoeResult& actual, const MoeResult& expected, const std::string& what);

}  // namespace megalith::nn
