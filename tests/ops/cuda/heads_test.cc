// Queries, keys and values cut out of one projection, with norms and rotation.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "megalith/ops/norm_rope/norm.h"
#include "megalith/ops/norm_rope/rope.h"
#include "megalith/ops/sequence_layout.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

TEST_P(CudaKernel, SplitHeadsMatchTheCpu) {
  struct Case {
    int64_t head_dim, rotary_dim;
    bool interleaved;
  };
  for (const Case c : {Case{64, 64, false}, Case{128, 128, false}, Case{96, 96, false}, Case{256, 64, false},
                       Case{64, 32, true}, Case{24, 24, false}, Case{10, 4, false}})
    for (const bool with_norms : {false, true}) {
      const int64_t t = 19, n = 6, g = 2;
      const auto run = [&](const Tensors& in) {
        const RopeAngles angles = rope_angles({.rotary_dim = c.rotary_dim, .interleaved = c.interleaved},
                                              SequenceLayout::packed({12, 7}), in[0].device());
        const NormWeights q{NormKind::kRms, in[1], {}, 1e-6}, k{NormKind::kRms, in[2], {}, 1e-6};
        const auto [a, b, v] =
            split_qkv(in[0], {n, g, c.head_dim}, angles, with_norms ? &q : nullptr, with_norms ? &k : nullptr);
        return Tensors{a, b, v};
      };
      compare({random({t, (n + 2 * g) * c.head_dim}), random({c.head_dim}), random({c.head_dim})}, run,
              fmt::format("heads of {}, {} rotated, interleaved {}, norms {}", c.head_dim, c.rotary_dim, c.interleaved,
                          with_norms));
    }
}

TEST_P(CudaKernel, HeadsWithoutRotationMatchTheCpu) {
  const int64_t t = 19, n = 6, g = 2, d = 64;
  compare(
      {random({t, (n + 2 * g) * d})},
      [&](const Tensors& in) {
        const auto [q, k, v] = split_qkv(in[0], {n, g, d}, {}, nullptr, nullptr);
        return Tensors{q * 2, k, v};
      },
      "heads without rotation");
}

}  // namespace
}  // namespace megalith::ops
