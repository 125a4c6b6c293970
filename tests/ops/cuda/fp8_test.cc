// Casts to fp8, per tensor and per block, and products of fp8 matrices.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/gemm/fp8_blocks.h"
#include "megalith/ops/gemm/gemm.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

// The encoded numbers of an fp8 tensor, on the host: at::equal does not take fp8.
Tensor bytes_of(const Tensor& t) { return t.view(at::kByte).cpu(); }

TEST_P(CudaKernel, Fp8CastsAndProductsMatchTheCpu) {
  for (const Fp8Kind kind : {Fp8Kind::kE4m3, Fp8Kind::kE5m2})
    for (const auto& [r, c] : std::vector<std::pair<int64_t, int64_t>>{{16, 16}, {144, 80}, {256, 1024}}) {
      const Tensor x = random({r, c}) * 3, w = random({96, c});
      const Fp8Matrix cpu = to_fp8(x, {.kind = kind}), cuda = to_fp8(x.to(at::kCUDA), {.kind = kind});
      const std::string what = fmt::format("{} x {}", r, c);
      EXPECT_NEAR(cuda.inverse_scale.item<float>() / cpu.inverse_scale.item<float>(), 1, 1e-6) << what;
      EXPECT_TRUE(at::equal(bytes_of(cuda.rows).t(), bytes_of(cuda.columns))) << what;
      // The scale's last bit may move a number to the neighbour.
      EXPECT_LE(bytes_of(cuda.rows).ne(bytes_of(cpu.rows)).sum().item<int64_t>(), 1 + r * c / 1000) << what;
      const Fp8Matrix wc = to_fp8(w, {}), wd = to_fp8(w.to(at::kCUDA), {});
      expect_same(fp8_mm(cuda.rows, cuda.inverse_scale, wd.rows, wd.inverse_scale, at::kBFloat16, false),
                  fp8_mm(cpu.rows, cpu.inverse_scale, wc.rows, wc.inverse_scale, at::kBFloat16, false),
                  "product " + what);
      // A given scale, and what was seen.
      const Tensor scale = at::full({1}, 50.0), seen = at::zeros({1}, at::TensorOptions(at::kCUDA));
      const Fp8Matrix given = to_fp8(x.to(at::kCUDA), {.kind = kind, .scale = scale.to(at::kCUDA), .seen = seen});
      EXPECT_TRUE(bytes_of(given.rows).equal(bytes_of(to_fp8(x, {.kind = kind, .scale = scale}).rows))) << what;
      EXPECT_EQ(seen.item<double>(), x.abs().max().item<double>()) << what;
      const Fp8Matrix columns =
          to_fp8(x.to(at::kCUDA), {.kind = kind, .rows = false, .scale = cuda.scale, .seen = seen});
      EXPECT_TRUE(bytes_of(columns.columns).equal(bytes_of(cuda.columns))) << what;
    }
}

// Large products go to cuBLASLt without libtorch: their kernels are chosen by time, and add to what is there.
TEST_P(CudaKernel, LargeFp8ProductsByPlansMatchThoseWithout) {
  if (GetParam() != at::kBFloat16) GTEST_SKIP() << "the factors are in fp8 either way";
  const auto plans = make_gemm_plans();
  const GemmKernels tuned{.plans = plans.get()};
  const auto cuda = [&](at::IntArrayRef sizes) { return random(sizes).to(at::kCUDA); };
  const int64_t t = 4096, in = 1024, out = 2048;
  const Fp8Matrix x = to_fp8(cuda({t, in}), {}), w = to_fp8(cuda({out, in}), {}),
                  dy = to_fp8(cuda({t, out}), {.kind = Fp8Kind::kE5m2});
  for (const bool fast : {true, false})
    expect_same(fp8_mm(x.rows, x.inverse_scale, w.rows, w.inverse_scale, at::kBFloat16, fast, tuned),
                fp8_mm(x.rows, x.inverse_scale, w.rows, w.inverse_scale, at::kBFloat16, false).cpu(), "forward");
  expect_same(fp8_mm(dy.rows, dy.inverse_scale, w.columns, w.inverse_scale, at::kBFloat16, false, tuned),
              fp8_mm(dy.rows, dy.inverse_scale, w.columns, w.inverse_scale, at::kBFloat16, false).cpu(), "input");
  const Tensor grad = at::empty({out, in}, x.scale.options()), expected = at::empty_like(grad);
  add_fp8_mm(expected, dy.columns, dy.inverse_scale, x.columns, x.inverse_scale, 0);
  const auto expect_grad = [&](double factor) {
    EXPECT_LE((grad - factor * expected).abs().max().item<double>(),
              1e-4 * factor * expected.abs().max().item<double>());
  };
  add_fp8_mm(grad, dy.columns, dy.inverse_scale, x.columns, x.inverse_scale, 0, tuned);
  expect_grad(1);
  add_fp8_mm(grad, dy.columns, dy.inverse_scale, x.columns, x.inverse_scale, 1, tuned);
  expect_grad(2);
  EXPECT_EQ(plans->counts().kept, 4) << "each of the four shapes, with and without fast sums, went to the plans";
}

TEST_P(CudaKernel, Fp8InBlocksMatchesTheCpu) {
  const Tensor x = random({256, 1024}), w = random({512, 1024}), dy = random({256, 512});
  const auto run = [&](at::Device device) {
    const Fp8Matrix x8 = to_fp8_blocks(x.to(device), Fp8Kind::kE4m3, Fp8Blocks::kStrips),
                    w8 = to_fp8_blocks(w.to(device), Fp8Kind::kE4m3, Fp8Blocks::kSquares),
                    dy8 = to_fp8_blocks(dy.to(device), Fp8Kind::kE5m2, Fp8Blocks::kStrips);
    Tensors results;
    for (const Fp8Matrix& each : {x8, w8, dy8})
      for (const Tensor& part : {each.rows, each.columns}) results.push_back(bytes_of(part));
    for (const Fp8Matrix& each : {x8, w8, dy8})
      for (const Tensor& part : {each.inverse_scale, each.columns_inverse_scale}) results.push_back(part.cpu());
    results.push_back(fp8_mm(x8.rows, x8.inverse_scale, w8.rows, w8.inverse_scale, at::kBFloat16, true));
    results.push_back(fp8_mm(dy8.rows, dy8.inverse_scale, w8.columns, w8.columns_inverse_scale, at::kBFloat16, false));
    results.push_back(at::zeros({512, 1024}, at::TensorOptions(device)));
    add_fp8_mm(results.back(), dy8.columns, dy8.columns_inverse_scale, x8.columns, x8.columns_inverse_scale, 0);
    return results;
  };
  const Tensors cpu = run(at::kCPU), cuda = run(at::kCUDA);
  for (size_t i = 0; i < 12; ++i) EXPECT_TRUE(cuda[i].equal(cpu[i])) << i;
  for (size_t i = 12; i < cpu.size(); ++i) expect_same(cuda[i], cpu[i].to(at::kBFloat16), fmt::format("product {}", i));
}

// As products in bf16 (gemm_test.cc), by the same plans.
TEST_P(CudaKernel, Fp8ProductsLeaveRoomForOtherKernels) {
  const auto plans = make_gemm_plans();
  if (GetParam() != at::kBFloat16 || !plans) GTEST_SKIP() << "the product is the same in each dtype";
  constexpr int64_t kSize = 20480;  // 10 ms on an H100
  const auto matrix = [] {
    const Tensor x = at::randn({kSize, kSize}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
    return to_fp8(x, {.columns = false});
  };
  const Fp8Matrix a = matrix(), b = matrix();
  const auto product = [&](bool fast) {
    return fp8_mm(a.rows, a.inverse_scale, b.rows, b.inverse_scale, at::kBFloat16, fast, {.plans = plans.get()});
  };
  const Tensor expected = product(true);
  const SparedMultiprocessors room(plans.get(), 16);
  for (const bool fast : {true, false}) expect_room_beside([&] { product(fast); });
  expect_room_beside([&, out = at::empty_like(expected)] {
    add_fp8_mm(out, a.rows, a.inverse_scale, b.rows, b.inverse_scale, 0, {.plans = plans.get()});
  });
  const auto row = [](const Tensor& x) { return x.narrow(0, 77, 1); };
  expect_same(row(product(true)), row(expected).cpu(), "product beside other kernels");
  EXPECT_FALSE(at::globalContext()._SMCarveout_EXPERIMENTAL().has_value());  // other products are as before
}

}  // namespace
}  // namespace megalith::ops
