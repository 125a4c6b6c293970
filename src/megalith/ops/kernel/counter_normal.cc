// Counter-based random numbers. Elements 2p and 2p + 1 come from Philox counter p: words 0 and 1 give a pair of normal
// numbers by Box-Muller, words 2 and 3 a pair of uniform ones. A row of a shard may begin in the middle of a pair.
//
// The CUDA kernel computes the same in fp64. Its log, cos and sin may differ from the host's in the last bits, which
// almost never changes the result after rounding to fp32; where it could, the kernel lists the element and the host
// computes it again. So weights are the same bits on every device, at the speed of the device.
#include "megalith/ops/kernel/counter_normal.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <numbers>

#include "megalith/base/error.h"
#include "megalith/ops/kernel/counter_normal_internal.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

namespace {

// Returns elements 2·pair and 2·pair + 1 of the stream `key`, which share a counter.
std::array<double, 2> normal_pair(uint64_t key, uint64_t pair) {
  const PhiloxBlock bits = philox(pair, key);
  constexpr double kUnit = 1.0 / 4294967296.0;
  const double u = (bits.word[0] + 1.0) * kUnit;  // (0, 1]
  const double angle = 2 * std::numbers::pi * bits.word[1] * kUnit;
  const double radius = std::sqrt(-2 * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// The same for uniform numbers in [0, 1). They have 24 bits, so that a float holds each exactly.
std::array<double, 2> uniform_pair(uint64_t key, uint64_t pair) {
  const PhiloxBlock bits = philox(pair, key);
  constexpr double kUnit = 1.0 / 16777216.0;
  return {(bits.word[2] >> 8U) * kUnit, (bits.word[3] >> 8U) * kUnit};
}
using Pair = std::array<double, 2> (*)(uint64_t key, uint64_t pair);

// The number is rounded to fp32 before mean and std are applied, in fp64: the order is part of the definition.
float placed(const CounterRows& what, double number) {
  return static_cast<float>(what.mean + what.std * static_cast<float>(number));
}

// Draws elements first … first + count - 1.
void fill_row(float* out, const CounterRows& what, Pair draw, uint64_t first, int64_t count) {
  const uint64_t end = first + static_cast<uint64_t>(count);
  for (uint64_t index = first; index < end;) {
    const auto pair = draw(what.key, index / 2);
    for (uint64_t half = index % 2; half < 2 && index < end; ++half, ++index) *out++ = placed(what, pair[half]);
  }
}

// The kernels' arguments for a rectangle of a matrix whose elements are numbered row by row.
CounterRows counter_rows(const at::Tensor& out, uint64_t key, const CountedRectangle& where, double mean, double std) {
  return {.key = key,
          .first = static_cast<uint64_t>(where.first_row * where.columns + where.first_column),
          .rows = out.size(0),
          .width = out.size(1),
          .stride = where.columns,
          .mean = mean,
          .std = std};
}

// Threads own ranges of rows of at least about 4096 elements; what they draw depends on the position alone.
at::Tensor draw_on_host(const CounterRows& what, Pair draw) {
  at::Tensor numbers = at::empty({what.rows, what.width}, at::kFloat);
  auto* data = numbers.mutable_data_ptr<float>();
  parallel_for(what.rows, 1 + 4096 / what.width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      fill_row(data + r * what.width, what, draw, what.first + static_cast<uint64_t>(r * what.stride), what.width);
  });
  return numbers;
}

// Returns undefined if too many numbers are in doubt (never seen): then the host has to draw all.
at::Tensor draw_on_cuda(const CounterRows& what, at::Device device) {
  constexpr int64_t kMost = 4096;
  const at::TensorOptions there(device);
  at::Tensor numbers = at::empty({what.rows, what.width}, there.dtype(at::kFloat));
  const at::Tensor doubtful = at::empty({kMost}, there.dtype(at::kLong)), count = at::zeros({1}, there.dtype(at::kInt));
  counter_normal_cuda(what, numbers.mutable_data_ptr<float>(), doubtful.mutable_data_ptr<int64_t>(), kMost,
                      count.mutable_data_ptr<int>(), stream_of(numbers));
  const int64_t in_doubt = count.item<int>();
  if (in_doubt > kMost) return {};
  if (in_doubt == 0) return numbers;
  const at::Tensor places = doubtful.narrow(0, 0, in_doubt).cpu();
  at::Tensor exact = at::empty({in_doubt}, at::kFloat);
  for (int64_t i = 0; i < in_doubt; ++i) {
    const int64_t element = places.const_data_ptr<int64_t>()[i];
    const auto index = what.first + static_cast<uint64_t>(element / what.width * what.stride + element % what.width);
    exact.mutable_data_ptr<float>()[i] = placed(what, normal_pair(what.key, index / 2)[index % 2]);
  }
  numbers.view(-1).index_copy_(0, places.to(device), exact.to(device));
  return numbers;
}

}  // namespace

void fill_counter_normal(const at::Tensor& out, uint64_t key, const CountedRectangle& where, double mean, double std) {
  check(out.dim() == 2, "fill_counter_normal takes a matrix; it got {}", shape_text(out));
  if (out.numel() == 0 || out.is_meta()) return;
  const CounterRows what = counter_rows(out, key, where, mean, std);
  at::Tensor numbers;
  if constexpr (kCudaKernels) {
    if (out.is_cuda()) numbers = draw_on_cuda(what, out.device());
  }
  out.copy_(numbers.defined() ? numbers : draw_on_host(what, normal_pair));
}

void fill_counter_uniform(const at::Tensor& out, uint64_t key, const CountedRectangle& where, double bound) {
  check(out.dim() == 2, "fill_counter_uniform takes a matrix; it got {}", shape_text(out));
  if (out.numel() == 0 || out.is_meta()) return;
  out.copy_(draw_on_host(counter_rows(out, key, where, -bound, 2 * bound), uniform_pair));
}

}  // namespace megalith::ops
