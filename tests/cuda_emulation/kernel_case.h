// Shared by the tests of kernels: memory of exactly the size that a kernel may touch, running in every order,
// comparing with the CPU's twin.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/cuda_emulation/devices.h"
#include "tests/cuda_emulation/emulation.h"

namespace megalith::ops {

using at::Tensor;
using Tensors = std::vector<Tensor>;
inline constexpr auto kBothDtypes = {at::kFloat, at::kBFloat16};

// Not initialised. `misaligned`: it starts an element after a multiple of 16 bytes, and still ends where the memory
// does, so that the address sanitizer finds what is read beyond.
inline Tensor block_of(at::IntArrayRef sizes, at::ScalarType dtype, bool misaligned = false) {
  const int64_t elements = c10::multiply_integers(sizes), skipped = misaligned ? 1 : 0;
  return at::empty({elements + skipped}, dtype).narrow(0, skipped, elements).view(sizes);
}
// For results: NaN where a kernel leaves them as they are.
inline Tensor unset(at::IntArrayRef sizes, at::ScalarType dtype, bool misaligned = false) {
  return block_of(sizes, dtype, misaligned).fill_(std::numeric_limits<double>::quiet_NaN());
}
// Normally distributed, other numbers in each call of a test.
class Random {
 public:
  Tensor operator()(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat, bool misaligned = false) {
    return block_of(sizes, dtype, misaligned).copy_(at::randn(sizes, generator_, at::kFloat));
  }
  Tensor integers(int64_t end, at::IntArrayRef sizes) { return at::randint(end, sizes, generator_, at::kLong); }
  Tensor permutation(int64_t n) { return at::randperm(n, generator_, at::kLong); }

 private:
  at::Generator generator_ = at::detail::createCPUGenerator(7);
};

// nullptr where undefined.
inline const void* in(const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }
inline void* out(const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }
inline float* floats(const Tensor& t) { return t.defined() ? t.mutable_data_ptr<float>() : nullptr; }
inline int64_t* numbers(const Tensor& t) { return t.defined() ? t.mutable_data_ptr<int64_t>() : nullptr; }

// Returns whether two tensors hold the same bytes, in order of their elements.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous(), y = b.contiguous();
  if (x.nbytes() != y.nbytes()) return false;
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// |a - b| <= 1e-5 max|b|, and one unit in the last place of b where it has 16 bits.
inline void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what,
                         double tolerance = 1e-5) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  if (expected.numel() == 0) return;
  const double unit = expected.scalar_type() == at::kBFloat16 ? 0x1p-7
                      : expected.scalar_type() == at::kHalf   ? 0x1p-10
                                                              : 0;
  const Tensor a = actual.to(at::kDouble), b = expected.to(at::kDouble), size = b.abs();
  const double most = size.max().item<double>();
  EXPECT_LE(((a - b).abs() - unit * size).max().item<double>(), tolerance * most) << what << "; largest " << most;
}

using Run = std::function<Tensors(void* stream)>;  // computes its results again

// The results of a kernel, which are the same to the last bit in every order of its threads and on both devices (one of
// the orders runs on the second). `exactly` false: it adds with atomics, and they are close.
inline Tensors in_every_order(const Run& run, const std::string& what, bool exactly = true) {
  using cuda_emulation::Order;
  Tensors first;
  for (const Order order : {Order::kFirstToLast, Order::kLastToFirst, Order::kShuffled}) {
    const int device = order == Order::kLastToFirst ? 1 : 0;
    const cuda_emulation::CurrentDevice current(device);
    cuda_emulation::Stream stream{.order = order, .device = device};
    const Tensors results = run(&stream);
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string which =
          fmt::format("{}, result {}, order {}, device {}", what, i, static_cast<int>(order), device);
      if (!results[i].defined()) continue;
      if (exactly)
        EXPECT_TRUE(same_bits(results[i], first[i])) << which;
      else
        expect_close(results[i], first[i], which);
    }
  }
  return first;
}

// The same, and what the CPU's twin gives.
inline void expect_twin(const Run& cuda, const std::function<Tensors()>& cpu, const std::string& what,
                        double tolerance = 1e-5) {
  const Tensors actual = in_every_order(cuda, what), expected = cpu();
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << what;
    if (actual[i].defined()) expect_close(actual[i], expected[i], fmt::format("{}, result {}", what, i), tolerance);
  }
}

}  // namespace megalith::ops
