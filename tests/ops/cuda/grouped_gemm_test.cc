// Grouped products of experts, with the counts known on the host or only on the device.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/gemm/grouped_fp8.h"
#include "megalith/ops/gemm/grouped_gemm.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

TEST_P(CudaKernel, GroupedProductsMatchTheCpu) {
  const int64_t r = 33, i = 64, o = 128;
  const Tensor x = random({r, i}), w = random({4, o, i}), dy = random({r, o});
  const auto run = [&](at::Device device, bool known_there) {
    const GroupCounts counts =
        known_there ? GroupCounts::on_device(at::tensor({5, 5, 22, 33}, at::TensorOptions(at::kInt).device(device)))
                    : GroupCounts{5, 0, 17, 11};
    const Tensor dw = at::ones({4, o, i}, at::TensorOptions(device)), fresh = at::full_like(dw, 7);
    grouped_weight_grad(dw, dy.to(device), x.to(device), counts, 1);
    grouped_weight_grad(fresh, dy.to(device), x.to(device), counts, 0);
    return Tensors{grouped_mm_transposed(x.to(device), w.to(device), counts),
                   grouped_mm(dy.to(device), w.to(device), counts), dw, fresh};
  };
  const Tensors cpu = run(at::kCPU, false);
  for (const bool known_there : {false, true}) {
    const Tensors cuda = run(at::kCUDA, known_there);
    for (size_t n = 0; n < cpu.size(); ++n) {
      const Tensor rounded = GetParam() == at::kFloat ? cpu[n] : cpu[n].to(at::kBFloat16);
      expect_same(cuda[n], rounded, fmt::format("product {}, counts on the device: {}", n, known_there));
    }
  }
}

TEST_P(CudaKernel, GroupedFp8CastsAndProductsMatchTheCpu) {
  if (!has_grouped_fp8(at::Device(at::kCUDA, 0))) GTEST_SKIP() << "only GPUs of compute capability 9 have the kernel";
  const auto bytes_of = [](const Tensor& t) { return t.contiguous().view(at::kByte).cpu(); };
  for (const auto& [r, i, o] : {std::tuple<int64_t, int64_t, int64_t>{33, 64, 128}, {700, 2064, 272}}) {
    const std::string what = fmt::format("{} rows, {} x {}", r, o, i);
    // Rows of unequal sizes.
    const Tensor x = random({r, i}) * at::logspace(-2, 2, r).unsqueeze(1).to(GetParam()), w = random({4, o, i}),
                 dy = random({r, o});
    const auto cast = [&](at::Device device) {
      return std::vector<Fp8Rows>{to_fp8_rows(x.to(device)), to_fp8_rows(w.to(device)), to_fp8_rows(dy.to(device)),
                                  to_fp8_columns(w.to(device))};
    };
    const std::vector<Fp8Rows> cpu = cast(at::kCPU), cuda = cast(at::kCUDA);
    for (size_t n = 0; n < cpu.size(); ++n) {
      EXPECT_TRUE(bytes_of(cuda[n].values).equal(bytes_of(cpu[n].values))) << what << ", cast " << n;
      EXPECT_TRUE(cuda[n].inverse_scale.cpu().equal(cpu[n].inverse_scale)) << what << ", cast " << n;
    }
    const auto product = [&, r = r](const std::vector<Fp8Rows>& factors, at::Device device, bool grad) {
      const GroupCounts counts = GroupCounts::on_device(
          at::tensor({5, 5, 22, static_cast<int>(r)}, at::TensorOptions(at::kInt).device(device)));
      return grouped_fp8_mm(factors[grad ? 2 : 0], factors[grad ? 3 : 1], counts, at::kBFloat16, !grad);
    };
    for (const bool grad : {false, true}) {
      // Sums of fp8 products have fewer bits than those in fp32.
      const Tensor expected = product(cpu, at::kCPU, grad).to(at::kFloat),
                   actual = product(cuda, at::Device(at::kCUDA, 0), grad).cpu().to(at::kFloat);
      const Tensor error = (actual - expected).abs().amax(1) / expected.abs().amax(1);
      EXPECT_LE(error.max().item<double>(), 1e-2) << what << (grad ? ", gradient" : ", forward");
    }
  }
}

TEST_P(CudaKernel, ProductsAreAddedToTheGroupsThatHaveRows) {
  const GroupCounts counts{0, 9, 0, 11};
  for (const int64_t i : {8, 5, 520})
    for (const double beta : {0.0, 1.0, 0.5}) {
      const Tensor products = at::randn({4, 3, i}, generator_, at::kFloat).to(at::kBFloat16),
                   before = random({4, 3, i});
      for (const int64_t empty : {0, 2}) products[empty].fill_(NAN);
      const auto run = [&](at::Device device) {
        const Tensor dw = before.to(device, before.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
        const GroupCounts own(counts.on_host());
        add_group_products(dw, products.to(device, at::kBFloat16, /*non_blocking=*/false, /*copy=*/true), own, beta);
        return dw;
      };
      expect_same(run(at::kCUDA), run(at::kCPU), fmt::format("{} columns, beta {}", i, beta));
    }
}

}  // namespace
}  // namespace megalith::ops
