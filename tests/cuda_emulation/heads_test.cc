#include "megalith/ops/rope_internal.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

struct Case {
  at::ScalarType dtype;
  int64_t head_dim, half;
  bool interleaved = false, misaligned = false;
  int64_t tokens = 19;
};
// Whole heads in halves; parts of heads, pairs of neighbours, heads of odd widths and of the most channels; no
// rotation.
const std::vector<Case> kCases{{at::kFloat, 64, 32},
                               {at::kFloat, 24, 12},
                               {at::kFloat, 256, 128},
                               {at::kFloat, 256, 32},
                               {at::kFloat, 64, 16, true},
                               {at::kFloat, 10, 2},
                               {at::kFloat, 7, 0},
                               {at::kFloat, 128, 0},
                               {at::kFloat, 512, 256, true, false, 3},
                               {at::kFloat, 64, 32, false, true},
                               {at::kFloat, 64, 32, false, false, 1},
                               {at::kFloat, 64, 32, false, false, 0},
                               {at::kBFloat16, 128, 64},
                               {at::kBFloat16, 96, 48},
                               {at::kBFloat16, 64, 32, true},
                               {at::kBFloat16, 512, 256, false, false, 3},
                               {at::kHalf, 64, 32}};

std::string name_of(const Case& c) {
  return fmt::format("{} tokens, heads of {}, {} pairs, interleaved {}, misaligned {}", c.tokens, c.head_dim, c.half,
                     c.interleaved, c.misaligned);
}

// Angles of every token.
class Angles {
 public:
  Angles(const Case& c, Random& random) : half_(c.half), interleaved_(c.interleaved) {
    const Tensor angles = random({c.tokens, c.half});
    cos_ = angles.cos();
    sin_ = angles.sin();
  }
  Rotation rotation(bool inverse) const { return {floats(cos_), floats(sin_), half_, interleaved_, inverse}; }

 private:
  const int64_t half_;
  const bool interleaved_;
  Tensor cos_, sin_;
};

// Query, key and value of a token stand side by side; each has a tensor of its own afterwards.
TEST(CudaHeads, Forward) {
  constexpr int64_t kHeads[] = {3, 2, 2};
  for (const Case& c : kCases)
    for (const bool with_norms : {false, true}) {
      Random random;
      const Angles angles(c, random);
      const Tensor qkv = random({c.tokens, 7, c.head_dim}, c.dtype, c.misaligned), weight = random({c.head_dim});
      const auto run = [&](bool cuda, void* stream) {
        Tensors results;
        std::vector<HeadGroup> groups;
        int64_t first = 0;
        for (const int64_t heads : kHeads) {
          const Tensor part = qkv.narrow(1, first, heads);
          const Tensor& to = results.emplace_back(unset({c.tokens, heads, c.head_dim}, c.dtype, c.misaligned));
          const bool last = results.size() == 3;  // the value: as it is
          groups.push_back({{in(part), part.stride(0), part.stride(1)},
                            {out(to), to.stride(0), to.stride(1)},
                            heads,
                            !last,
                            with_norms && !last ? in(weight) : nullptr,
                            1e-6});
          first += heads;
        }
        const HeadsShape shape{c.dtype, c.tokens, c.head_dim};
        cuda ? map_heads_cuda(shape, angles.rotation(false), groups, stream)
             : map_heads_cpu(shape, angles.rotation(false), groups);
        return results;
      };
      expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); },
                  fmt::format("{}, norms {}", name_of(c), with_norms));
    }
}

TEST(CudaHeads, Backward) {
  for (const Case& c : kCases) {
    constexpr int64_t kHeads = 3;
    Random random;
    const Angles angles(c, random);
    const Tensor all = random({c.tokens, kHeads + 1, c.head_dim}, c.dtype, c.misaligned), weight = random({c.head_dim});
    const Tensor x = all.narrow(1, 1, kHeads), dy = random({c.tokens, kHeads, c.head_dim}, c.dtype, c.misaligned);
    const auto run = [&](bool cuda, void* stream) {
      const Tensor dx = unset({c.tokens, kHeads, c.head_dim}, c.dtype, c.misaligned),
                   dw = unset({c.head_dim}, at::kFloat);
      const HeadsShape shape{c.dtype, c.tokens, c.head_dim};
      const HeadGroupBackward group{{in(x), x.stride(0), x.stride(1)},
                                    {in(dy), dy.stride(0), dy.stride(1)},
                                    {out(dx), dx.stride(0), dx.stride(1)},
                                    kHeads,
                                    in(weight),
                                    1e-6,
                                    out(dw)};
      if (cuda) {
        const Tensor workspace = unset({map_heads_backward_workspace_cuda(shape)}, at::kFloat);
        map_heads_backward_cuda(shape, angles.rotation(true), group, floats(workspace), stream);
      } else {
        map_heads_backward_cpu(shape, angles.rotation(true), group);
      }
      return Tensors{dx, dw};
    };
    expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); }, name_of(c));
  }
}

}  // namespace
}  // namespace megalith::ops
