// Planned scratch of attention on CUDA: it follows the kernel that the numbers' type and the heads get.
#include "megalith/nn/context_parallel/context_attention_footprint.h"

#include <gtest/gtest.h>

#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/footprint/memory_walk.h"
#include "megalith/ops/attention/attention.h"

namespace megalith::nn {
namespace {

RankSizes on_cuda(at::ScalarType dtype, double tokens) {
  RankSizes rank;
  rank.t = rank.s = rank.length = tokens;
  rank.dtype = dtype;
  rank.bytes = static_cast<double>(c10::elementSize(dtype));
  return rank;
}

// Returns the scratch at the peaks of forward and of backward.
std::pair<double, double> scratch(const RankSizes& rank, const CoreHeads& heads) {
  const ContextAttentionFootprint footprint(heads, /*recompute=*/false);
  MemoryWalk there, back;
  LayerWalk forward(rank, there), backward(rank, back);
  footprint.forward(forward, /*keep=*/true);
  footprint.backward(backward);
  const auto workspace = static_cast<size_t>(Use::kWorkspace);
  return {there.peak()[workspace], back.peak()[workspace]};
}

TEST(ContextAttentionFootprint, ScratchOnCudaFollowsTheKernel) {
  const double t = 8192;
  const CoreHeads grouped{.query = 32, .key_value = 8, .key_dim = 128, .value_dim = 128};
  const CoreHeads plain{.query = 32, .key_value = 32, .key_dim = 128, .value_dim = 128};
  // cuDNN: nothing.
  EXPECT_EQ(scratch(on_cuda(at::kBFloat16, t), grouped), std::pair(0.0, 0.0));
  // The memory-efficient kernel: k and v for all query heads, their gradients, sums of the queries' gradients and one
  // number per query and head. Nothing that grows with the square of t.
  const double copies = 4 * t * 32 * (128 + 128), sums = 4 * t * 32 * 128 + 4 * t * 32;
  EXPECT_EQ(scratch(on_cuda(at::kFloat, t), grouped), std::pair(copies, 2 * copies + sums));
  EXPECT_EQ(scratch(on_cuda(at::kFloat, t), plain), std::pair(0.0, sums));
  // Heads that no kernel takes: scores within a bound.
  const CoreHeads odd{.query = 32, .key_value = 32, .key_dim = 66, .value_dim = 66};
  const double bound = 4.0 * static_cast<double>(ops::kMostScores);
  EXPECT_EQ(scratch(on_cuda(at::kFloat, t), odd), std::pair(3 * bound, 5 * bound));
  EXPECT_EQ(scratch(on_cuda(at::kFloat, 64), odd).first, 3 * 4 * 32 * 64 * 64);
}

}  // namespace
}  // namespace megalith::nn
