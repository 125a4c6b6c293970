// The kernels that cut heads out of a projection, normalize and rotate them, on emulated blocks against the CPU,
// forward and backward.
#include "megalith/ops/norm_rope/rope_internal.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

struct HeadsCase {
  at::ScalarType dtype;
  int64_t head_dim, half;
  bool interleaved = false, misaligned = false;
  int64_t tokens = 19;
};
// Whole heads in halves; parts of heads, pairs of neighbours, heads of odd widths and of the most channels; no
// rotation.
const std::vector<HeadsCase> kHeadsCases{{at::kFloat, 64, 32},
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
                                         {at::kBFloat16, 256, 128},
                                         {at::kBFloat16, 96, 48},
                                         {at::kBFloat16, 64, 32, true},
                                         {at::kBFloat16, 512, 256, false, false, 3},
                                         {at::kHalf, 64, 32}};

// The weight of a norm: fp32, or as the heads and shifted.
struct Weight {
  Tensor kept;
  bool raw;
  Weight(const HeadsCase& c, bool as_heads, Random& random)
      : kept(random({c.head_dim}, as_heads ? c.dtype : at::kFloat)), raw(as_heads) {}
  float shift() const { return raw ? 1 : 0; }
  // As the CPU wants it: fp32, shifted.
  Tensor given(bool cuda) const { return cuda ? kept : kept.to(at::kFloat) + shift(); }
};

std::string name_of(const HeadsCase& c) {
  return fmt::format("{} tokens, heads of {}, {} pairs, interleaved {}, misaligned {}", c.tokens, c.head_dim, c.half,
                     c.interleaved, c.misaligned);
}

// Angles of every token.
class Angles {
 public:
  Angles(const HeadsCase& c, Random& random) : half_(c.half), interleaved_(c.interleaved) {
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

HeadsIn heads_in(const Tensor& t) { return {in(t), t.stride(0), t.stride(1)}; }
HeadsOut heads_out(const Tensor& t) { return {out(t), t.stride(0), t.stride(1)}; }

// Query, key and value of a token stand side by side; each has a tensor of its own afterwards.
TEST(CudaHeads, Forward) {
  constexpr int64_t kHeads[] = {3, 2, 2};
  for (const HeadsCase& c : kHeadsCases)
    for (const auto& [with_norms, raw] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
      Random random;
      const Angles angles(c, random);
      const Tensor qkv = random({c.tokens, 7, c.head_dim}, c.dtype, c.misaligned);
      const Weight weight(c, raw, random);
      const auto run = [&](bool cuda, void* stream) {
        const Tensor given = weight.given(cuda);
        Tensors results;
        std::vector<HeadGroup> groups;
        int64_t first = 0;
        for (const int64_t heads : kHeads) {
          const Tensor part = qkv.narrow(1, first, heads);
          const Tensor& to = results.emplace_back(unset({c.tokens, heads, c.head_dim}, c.dtype, c.misaligned));
          const bool last = results.size() == 3;  // the value: as it is
          groups.push_back({heads_in(part), heads_out(to), heads, !last, with_norms && !last ? in(given) : nullptr,
                            1e-6, raw, weight.shift()});
          first += heads;
        }
        const HeadsShape shape{c.dtype, c.tokens, c.head_dim};
        cuda ? map_heads_cuda(shape, angles.rotation(false), groups, stream)
             : map_heads_cpu(shape, angles.rotation(false), groups);
        return results;
      };
      expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); },
                  fmt::format("{}, norms {}, raw weights {}", name_of(c), with_norms, raw));
    }
}

TEST(CudaHeads, Backward) {
  for (const HeadsCase& c : kHeadsCases)
    for (const bool raw : {false, true}) {
      constexpr int64_t kHeads = 3;
      Random random;
      const Angles angles(c, random);
      const Tensor all = random({c.tokens, kHeads + 1, c.head_dim}, c.dtype, c.misaligned);
      const Tensor x = all.narrow(1, 1, kHeads), dy = random({c.tokens, kHeads, c.head_dim}, c.dtype, c.misaligned);
      const Weight weight(c, raw, random);
      const auto run = [&](bool cuda, void* stream) {
        const Tensor given = weight.given(cuda), dx = unset({c.tokens, kHeads, c.head_dim}, c.dtype, c.misaligned);
        const Tensor dw = unset({c.head_dim}, cuda ? weight.kept.scalar_type() : at::kFloat);
        const HeadsShape shape{c.dtype, c.tokens, c.head_dim};
        const HeadGroupBackward group{heads_in(x), heads_in(dy), heads_out(dx), kHeads,         in(given),
                                      1e-6,        out(dw),      raw,           weight.shift(), dw.scalar_type()};
        if (cuda) {
          const Tensor workspace = unset({map_heads_backward_workspace_cuda(shape)}, at::kFloat);
          map_heads_backward_cuda(shape, angles.rotation(true), group, floats(workspace), stream);
        } else {
          map_heads_backward_cpu(shape, angles.rotation(true), group);
        }
        return Tensors{dx, dw.to(weight.kept.scalar_type())};
      };
      expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); },
                  fmt::format("{}, raw weights {}", name_of(c), raw));
    }
}

// Query, key and value at once: on the CPU the first two as above, and the third as it is.
class SplitBackward {
 public:
  SplitBackward(const HeadsCase& c, int64_t query, int64_t key_value)
      : case_(c), heads_{query, key_value, key_value}, angles_(c, random_) {
    qkv_ = random_({c.tokens, query + 2 * key_value, c.head_dim}, c.dtype);
    for (const int64_t heads : heads_) grads_.push_back(random_({c.tokens, heads, c.head_dim}, c.dtype));
    for (int i = 0; i < 2; ++i) weights_.emplace_back(c, true, random_);
  }

  bool fits() const { return can_split_backward_cuda(shape(), angles_.rotation(true), arguments(true).qkv); }
  void expect_same() const {
    expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); },
                fmt::format("{}, {} + {} heads", name_of(case_), heads_[0], heads_[1]));
  }

 private:
  struct Arguments {
    Tensor grad;          // gradient of qkv
    Tensors given, sums;  // weights of query and key, and the sums of their gradients
    QkvBackward qkv;
  };

  HeadsShape shape() const { return {case_.dtype, case_.tokens, case_.head_dim}; }

  Arguments arguments(bool cuda) const {
    Arguments args{.grad = unset(qkv_.sizes(), case_.dtype)};
    int64_t first = 0;
    for (size_t i = 0; i < 3; ++i) {
      const Tensor x = qkv_.narrow(1, first, heads_[i]), dx = args.grad.narrow(1, first, heads_[i]);
      first += heads_[i];
      HeadGroupBackward& part = args.qkv.part[i];
      part = {.in = heads_in(x), .grad_out = heads_in(grads_[i]), .grad_in = heads_out(dx), .heads = heads_[i]};
      if (i == 2) continue;
      args.given.push_back(weights_[i].given(cuda));
      args.sums.push_back(unset({case_.head_dim}, cuda ? case_.dtype : at::kFloat));
      part.norm_weight = in(args.given[i]);
      part.epsilon = 1e-6;
      part.grad_weight = out(args.sums[i]);
      part.raw_weight = true;
      part.weight_shift = weights_[i].shift();
      part.grad_weight_dtype = args.sums[i].scalar_type();
    }
    return args;
  }

  Tensors run(bool cuda, void* stream) const {
    const Arguments args = arguments(cuda);
    const Rotation rotation = angles_.rotation(true);
    if (cuda) {
      const Tensor workspace = unset({split_backward_workspace_cuda(shape())}, at::kFloat);
      split_backward_cuda(shape(), rotation, args.qkv, floats(workspace), stream);
    } else {
      for (size_t i = 0; i < 2; ++i) map_heads_backward_cpu(shape(), rotation, args.qkv.part[i]);
      args.grad.narrow(1, heads_[0] + heads_[1], heads_[2]).copy_(grads_[2]);
    }
    return {args.grad, args.sums[0].to(case_.dtype), args.sums[1].to(case_.dtype)};
  }

  const HeadsCase case_;
  const std::array<int64_t, 3> heads_;
  Random random_;
  const Angles angles_;
  Tensor qkv_;
  Tensors grads_;
  std::vector<Weight> weights_;
};

TEST(CudaHeads, BackwardAtOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t head_dim : {64, 128, 256})
      for (const auto& [query, key_value] : {std::pair(6, 2), std::pair(9, 5), std::pair(1, 1)}) {
        const SplitBackward split({.dtype = dtype, .head_dim = head_dim, .half = head_dim / 2, .tokens = 75}, query,
                                  key_value);
        ASSERT_TRUE(split.fits());
        split.expect_same();
      }
  for (const HeadsCase& c : kHeadsCases) {
    const bool usual = c.head_dim == 64 || c.head_dim == 128 || c.head_dim == 256;
    if (!usual || c.half != c.head_dim / 2 || c.interleaved || c.tokens == 0) {
      EXPECT_FALSE(SplitBackward(c, 2, 1).fits()) << name_of(c);
    }
  }
}

}  // namespace
}  // namespace megalith::ops
