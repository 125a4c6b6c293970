// Attention over dense and packed sequences, with grouped heads and a window. Its kernels are libraries', so this also
// proves that the choice among them is right.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "megalith/ops/attention/attention.h"
#include "megalith/ops/sequence_layout.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

TEST_P(CudaKernel, AttentionMatchesTheCpu) {
  struct Case {
    SequenceLayout layout;
    int64_t n, g, d, e, window;
  };
  const std::vector<Case> cases{
      {SequenceLayout::dense(2, 64), 4, 4, 64, 64, 0},   {SequenceLayout::dense(2, 128), 8, 2, 64, 64, 0},
      {SequenceLayout::dense(1, 96), 4, 2, 128, 128, 0}, {SequenceLayout::packed({33, 7, 60}), 4, 2, 64, 64, 0},
      {SequenceLayout::dense(2, 64), 4, 2, 64, 64, 16},  {SequenceLayout::packed({33, 31}), 4, 4, 96, 64, 0}};
  for (const Case& c : cases) {
    const int64_t t = c.layout.tokens();
    compare(
        {random({t, c.n, c.d}), random({t, c.g, c.d}), random({t, c.g, c.e})},
        [&](const Tensors& in) {
          return Tensors{attention(in[0], in[1], in[2], c.layout, c.layout, {.window = c.window})};
        },
        fmt::format("{} tokens, {} and {} heads of {} and {}, window {}", t, c.n, c.g, c.d, c.e, c.window));
  }
}

}  // namespace
}  // namespace megalith::ops
