#include <cmath>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/fp8_blocks.h"
#include "megalith/ops/gemm/fp8_internal.h"
#include "megalith/ops/gemm/grouped_fp8.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

constexpr auto kKinds = {Fp8Kind::kE4m3, Fp8Kind::kE5m2};

Tensor bytes_of(const Tensor& fp8) { return fp8.contiguous().view(at::kByte); }
Tensor unwritten(int64_t r, int64_t c) { return at::full({r, c}, 0x7f, at::kByte); }

TEST(CudaFp8, LargestMagnitude) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t n : {0, 1, 1003, 40000})
      for (const bool misaligned : {false, true}) {
        Random random;
        const Tensor x = random({n}, dtype, misaligned);
        if (n > 9) x[9] = NAN;  // does not count
        const auto cuda = [&](void* stream) {
          const Tensor largest = at::zeros({1}, at::kFloat);
          largest_magnitude_cuda(dtype, in(x), n, floats(largest), stream);
          return Tensors{largest};
        };
        const float expected = n == 0 ? 0 : x.nan_to_num(0).abs().max().item<float>();
        EXPECT_EQ(in_every_order(cuda, "largest")[0].item<float>(), expected) << n;
      }
}

struct Fp8Case {
  at::ScalarType dtype;
  int64_t r, c;
};

// Tensors: rows, columns, scale, inverse scale, seen.
Tensors cast(const Fp8Case& size, Fp8Kind kind, const Tensor& x, const Tensor& largest, const Tensor& scale, bool rows,
             bool columns, void* stream) {
  const Tensor by_row = rows ? unwritten(size.r, size.c) : Tensor(),
               by_column = columns ? unwritten(size.c, size.r) : Tensor();
  const Tensor used = scale.defined() ? scale.clone() : unset({1}, at::kFloat), inverse = unset({1}, at::kFloat);
  const Tensor seen = at::full({1}, 0.5F);
  cast_fp8_cuda({.dtype = size.dtype,
                 .x = in(x),
                 .r = size.r,
                 .c = size.c,
                 .kind = kind,
                 .largest = floats(largest),
                 .scale = floats(used),
                 .inverse_scale = floats(inverse),
                 .seen = floats(seen),
                 .rows = out(by_row),
                 .columns = out(by_column)},
                stream);
  return {by_row, by_column, used, inverse, seen};
}

TEST(CudaFp8, OneScale) {
  for (const Fp8Case& size : {Fp8Case{at::kFloat, 16, 16}, Fp8Case{at::kFloat, 144, 80},
                              Fp8Case{at::kBFloat16, 256, 96}, Fp8Case{at::kHalf, 16, 128}, Fp8Case{at::kFloat, 0, 16}})
    for (const Fp8Kind kind : kKinds) {
      Random random;
      const Tensor x = random({size.r, size.c}, size.dtype);
      const Tensor largest = at::full({1}, size.r == 0 ? 0 : x.abs().max().item<float>());
      const std::string what = fmt::format("{} x {}, kind {}", size.r, size.c, static_cast<int>(kind));
      // From the tensor itself, and given: so that numbers are beyond the reach, and infinite.
      const Tensors own =
          in_every_order([&](void* s) { return cast(size, kind, x, largest, {}, true, true, s); }, what);
      if (size.r == 0) continue;
      EXPECT_EQ(own[2].item<float>(), static_cast<float>(reach_of(kind)) / largest.item<float>()) << what;
      EXPECT_EQ(own[3].item<float>(), 1 / own[2].item<float>()) << what;
      EXPECT_EQ(own[4].item<float>(), largest.item<float>()) << what;
      EXPECT_TRUE(own[0].equal(bytes_of(to_fp8(x, {.kind = kind, .scale = own[2]}).rows))) << what;
      x[1][2] = INFINITY;
      const Tensor scale = own[2] * 1.7;
      const Fp8Matrix expected = to_fp8(x, {.kind = kind, .scale = scale});
      for (const auto& [rows, columns] : {std::pair{true, true}, {true, false}, {false, true}}) {
        const Tensors given =
            in_every_order([&](void* s) { return cast(size, kind, x, {}, scale, rows, columns, s); }, what);
        if (rows) {
          EXPECT_TRUE(given[0].equal(bytes_of(expected.rows))) << what;
        }
        if (columns) {
          EXPECT_TRUE(given[1].equal(bytes_of(expected.columns))) << what;
        }
        EXPECT_EQ(given[2].item<float>(), scale.item<float>()) << what;
        EXPECT_TRUE(std::isinf(given[4].item<float>())) << what;
      }
    }
}

TEST(CudaFp8, Blocks) {
  for (const Fp8Case& size :
       {Fp8Case{at::kFloat, 128, 256}, Fp8Case{at::kBFloat16, 256, 128}, Fp8Case{at::kHalf, 128, 128}})
    for (const Fp8Kind kind : kKinds)
      for (const Fp8Blocks blocks : {Fp8Blocks::kStrips, Fp8Blocks::kSquares}) {
        Random random;
        const bool strips = blocks == Fp8Blocks::kStrips;
        const Tensor x = random({size.r, size.c}, size.dtype);
        x[3].zero_();  // a strip of zeros
        const Fp8Matrix expected = to_fp8_blocks(x, kind, blocks);
        for (const auto& [rows, columns] : {std::pair{true, true}, {true, false}, {false, true}}) {
          const auto cuda = [&](void* stream) {
            const int64_t r = size.r / kFp8Block, c = size.c / kFp8Block;
            const Tensor by_row = rows ? unwritten(size.r, size.c) : Tensor(),
                         by_column = columns ? unwritten(size.c, size.r) : Tensor(),
                         scales = rows ? unset({strips ? c : r, strips ? size.r : c}, at::kFloat) : Tensor(),
                         column_scales = columns ? unset({strips ? r : c, strips ? size.c : r}, at::kFloat) : Tensor();
            cast_fp8_blocks_cuda({.dtype = size.dtype,
                                  .x = in(x),
                                  .r = size.r,
                                  .c = size.c,
                                  .kind = kind,
                                  .strips = strips,
                                  .rows = out(by_row),
                                  .columns = out(by_column),
                                  .inverse_scale = floats(scales),
                                  .columns_inverse_scale = floats(column_scales)},
                                 stream);
            return Tensors{by_row, by_column, scales, column_scales};
          };
          const std::string what =
              fmt::format("{} x {}, kind {}, strips {}", size.r, size.c, static_cast<int>(kind), strips);
          const Tensors actual = in_every_order(cuda, what);
          const auto in_memory = [&](const Tensor& scales) { return strips ? scales.t() : scales; };
          if (rows) {
            EXPECT_TRUE(actual[0].equal(bytes_of(expected.rows))) << what;
            EXPECT_TRUE(actual[2].equal(in_memory(expected.inverse_scale))) << what;
          }
          if (columns) {
            EXPECT_TRUE(actual[1].equal(bytes_of(expected.columns))) << what;
            EXPECT_TRUE(actual[3].equal(in_memory(expected.columns_inverse_scale))) << what;
          }
        }
      }
}

// Lengths of a lane's pieces: kept in registers, and read twice; a row that is not a multiple of a warp's.
TEST(CudaFp8, OneScalePerRow) {
  for (const auto& [r, c] : {std::pair<int64_t, int64_t>{3, 16}, {9, 272}, {2, 1040}, {2, 2064}, {3, 4112}})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      Random random;
      const Tensor x = random({r, c}, dtype);
      x[0].zero_();
      x[1][c - 1] = INFINITY;
      const auto cuda = [&, r = r, c = c](void* stream) {
        const Tensor values = unwritten(r, c), inverse = unset({r}, at::kFloat);
        cast_fp8_rows_cuda({dtype, in(x), 1, r, c}, out(values), floats(inverse), stream);
        return Tensors{values, inverse};
      };
      const std::string what = fmt::format("{} x {}", r, c);
      const Tensors actual = in_every_order(cuda, what);
      const Fp8Rows expected = to_fp8_rows(x);
      EXPECT_TRUE(actual[0].equal(bytes_of(expected.values))) << what;
      EXPECT_TRUE(actual[1].equal(expected.inverse_scale)) << what;
    }
}

// Tiles that the matrix does not fill, and more than one of them.
TEST(CudaFp8, OneScalePerColumn) {
  for (const auto& [g, o, i] : {std::tuple<int64_t, int64_t, int64_t>{1, 16, 16}, {3, 144, 80}, {2, 272, 64}})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      Random random;
      const Tensor w = random({g, o, i}, dtype);
      w.select(2, 1).zero_();
      w[0][o - 1][i - 1] = NAN;
      const auto cuda = [&, g = g, o = o, i = i](void* stream) {
        const Tensor values = unwritten(g * i, o), inverse = unset({g, i}, at::kFloat);
        cast_fp8_columns_cuda({dtype, in(w), g, o, i}, out(values), floats(inverse), stream);
        return Tensors{values.view({g, i, o}), inverse};
      };
      const std::string what = fmt::format("{} x {} x {}", g, o, i);
      const Tensors actual = in_every_order(cuda, what);
      const Fp8Rows expected = to_fp8_columns(w);
      EXPECT_TRUE(actual[0].equal(bytes_of(expected.values))) << what;
      EXPECT_TRUE(actual[1].equal(expected.inverse_scale)) << what;
    }
}

TEST(CudaFp8, RefusesWhatIsNotAligned) {
  Random random;
  const Fp8Case size{at::kFloat, 16, 16};
  const Tensor x = random({16, 16}, at::kFloat, /*misaligned=*/true);
  EXPECT_THROW(cast(size, Fp8Kind::kE4m3, x, {}, at::ones({1}), true, true, nullptr), InternalError);
  const Tensor values = unwritten(16, 16), inverse = unset({16}, at::kFloat);
  EXPECT_THROW(cast_fp8_rows_cuda({at::kFloat, in(x), 1, 16, 16}, out(values), floats(inverse), nullptr),
               InternalError);
  EXPECT_THROW(cast_fp8_columns_cuda({at::kFloat, in(values), 1, 8, 16}, out(values), floats(inverse), nullptr),
               InternalError);
}

}  // namespace
}  // namespace megalith::ops
