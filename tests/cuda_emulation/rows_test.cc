// Rows of experts, the residual, and sums of gradients.
#include "megalith/ops/gemm/gemm_internal.h"
#include "megalith/ops/moe/permute_internal.h"
#include "megalith/ops/update/gradient_sums_internal.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

struct RowsCase {
  at::ScalarType dtype;
  int64_t t, k, h;
  bool misaligned = false;
};
const std::vector<RowsCase> kRowsCases{
    {at::kFloat, 19, 3, 64},      {at::kFloat, 5, 1, 7},     {at::kFloat, 3, 64, 8},
    {at::kFloat, 4, 5, 16, true}, {at::kFloat, 0, 2, 8},     {at::kFloat, 2, 2, 2048},
    {at::kBFloat16, 19, 3, 64},   {at::kBFloat16, 5, 6, 13}, {at::kHalf, 3, 2, 40}};
std::string name_of(const RowsCase& c) {
  return fmt::format("{} tokens, {} copies, rows of {}{}", c.t, c.k, c.h, c.misaligned ? ", misaligned" : "");
}

// The row of each copy; some go nowhere, and the rest closes up.
struct Map {
  Map(const RowsCase& c, Random& random)
      : row(random.permutation(c.t * c.k).view({c.t, c.k})), token(row.view(-1).argsort()) {
    token = token.div(c.k, "floor");
    dropped = at::where(row.remainder(5).eq(3), -1, row).contiguous();
  }
  Tensor row, token, dropped;
};

TEST(CudaRows, CopyAndSpread) {
  for (const RowsCase& c : kRowsCases) {
    Random random;
    const Map map(c, random);
    const Tensor x = random({c.t, c.h}, c.dtype, c.misaligned);
    const PermuteSizes sizes{c.dtype, c.t, c.k, c.t * c.k, c.h};
    const auto run = [&](auto&& copy) {
      const Tensor y = unset({c.t * c.k, c.h}, c.dtype, c.misaligned);
      copy(out(y));
      return Tensors{y};
    };
    const auto cpu = [&] { return run([&](void* y) { copy_rows_cpu(sizes, in(x), numbers(map.token), y); }); };
    const auto copied = [&](void* s) {
      return run([&](void* y) { copy_rows_cuda(sizes, in(x), numbers(map.token), y, s); });
    };
    const auto spread = [&](void* s) {
      return run([&](void* y) { spread_rows_cuda(sizes, in(x), numbers(map.row), y, s); });
    };
    expect_twin(copied, cpu, "copied, " + name_of(c));
    expect_twin(spread, cpu, "spread, " + name_of(c));
  }
}

TEST(CudaRows, Sums) {
  for (const RowsCase& c : kRowsCases)
    for (const bool with_all : {true, false}) {
      Random random;
      const Map map(c, random);
      const Tensor rows = random({c.t * c.k, c.h}, c.dtype, c.misaligned);
      const Tensor w = with_all ? random({c.t, c.k}) : Tensor();
      const Tensor residual = with_all ? random({c.t, c.h}, c.dtype, c.misaligned) : Tensor();
      const PermuteSizes sizes{c.dtype, c.t, c.k, c.t * c.k, c.h};
      const auto run = [&](bool cuda, void* stream) {
        const Tensor y = unset({c.t, c.h}, c.dtype, c.misaligned);
        cuda ? sum_rows_cuda(sizes, in(rows), in(w), numbers(map.dropped), in(residual), out(y), stream)
             : sum_rows_cpu(sizes, in(rows), in(w), numbers(map.dropped), in(residual), out(y));
        return Tensors{y};
      };
      expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); }, name_of(c));
    }
}

TEST(CudaRows, SumsBackward) {
  for (const RowsCase& c : kRowsCases) {
    Random random;
    const Map map(c, random);
    const Tensor rows = random({c.t * c.k, c.h}, c.dtype, c.misaligned), w = random({c.t, c.k});
    const Tensor dy = random({c.t, c.h}, c.dtype, c.misaligned);
    const PermuteSizes sizes{c.dtype, c.t, c.k, c.t * c.k, c.h};
    const auto run = [&](bool cuda, void* stream) {
      const Tensor drows = block_of({c.t * c.k, c.h}, c.dtype, c.misaligned).zero_(),
                   dw = unset({c.t, c.k}, at::kFloat);
      cuda ? sum_rows_backward_cuda(sizes, in(rows), in(w), numbers(map.dropped), in(dy), out(drows), out(dw), stream)
           : sum_rows_backward_cpu(sizes, in(rows), in(w), numbers(map.dropped), in(dy), out(drows), out(dw));
      return Tensors{drows, dw};
    };
    expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); }, name_of(c));
  }
}

TEST(CudaRows, BiasAndResidual) {
  for (const RowsCase& c : kRowsCases)
    for (const bool raw : {false, true}) {
      Random random;
      const Tensor y = random({c.t, c.h}, c.dtype, c.misaligned), residual = random({c.t, c.h}, c.dtype, c.misaligned);
      const Tensor bias = random({c.h}, raw ? c.dtype : at::kFloat), wide = bias.to(at::kFloat);
      const auto run = [&](bool cuda, void* stream) {
        const Tensor sum = block_of(y.sizes(), c.dtype, c.misaligned).copy_(y);
        cuda ? add_bias_residual_cuda(c.dtype, out(sum), in(bias), raw, in(residual), c.t, c.h, stream)
             : add_bias_residual_cpu(c.dtype, out(sum), in(wide), in(residual), c.t, c.h);
        return Tensors{sum};
      };
      expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); }, name_of(c));
    }
}

TEST(CudaRows, GradientsOfBiases) {
  for (RowsCase c : kRowsCases)
    for (const bool add : {false, true}) {
      Random random;
      c.t *= 40;  // more rows than parts
      const Tensor dy = random({c.t, c.h}, c.dtype, c.misaligned), start = random({c.h});
      const auto cuda = [&](void* stream) {
        const Tensor sums = start.clone(), workspace = unset({bias_grad_workspace_cuda(c.t, c.h)}, at::kFloat);
        bias_grad_cuda(c.dtype, in(dy), c.t, c.h, floats(sums), add, floats(workspace), stream);
        return Tensors{sums};
      };
      const Tensor sums = dy.to(at::kDouble).sum(0);
      expect_twin(
          cuda, [&] { return Tensors{(add ? sums + start : sums).to(at::kFloat)}; }, name_of(c));
    }
}

// In vectors and not, by one block per token and by several.
TEST(CudaRows, GradientsOfEmbeddings) {
  auto cases = kRowsCases;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t h : {1024, 1027, 2048, 2052, 5120}) {
      cases.push_back({dtype, 9, 1, h});
      cases.push_back({dtype, 3, 1, h, true});
    }
  for (const RowsCase& c : cases) {
    Random random;
    const Tensor dy = random({c.t, c.h}, c.dtype, c.misaligned), table = random({7, c.h}),
                 rows = random.integers(7, {c.t});
    const auto cuda = [&](void* stream) {
      const Tensor sums = table.clone();
      add_to_rows_cuda(c.dtype, floats(sums), numbers(rows), in(dy), c.t, c.h, stream);
      return Tensors{sums};
    };
    const Tensor actual = in_every_order(cuda, name_of(c), /*exactly=*/false)[0];
    expect_close(actual, table.to(at::kDouble).index_add(0, rows, dy.to(at::kDouble)).to(at::kFloat), name_of(c));
  }
}

}  // namespace
}  // namespace megalith::ops
