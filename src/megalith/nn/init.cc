#include "megalith/nn/init.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <cmath>
#include <numbers>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/ops/cpu_parallel.h"

namespace megalith::nn {

namespace {

using Block = std::array<uint32_t, 4>;

// Philox-4x32-10 (Salmon et al., 2011): a keyed bijection on 128-bit counters whose outputs are random numbers.
Block philox(Block counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// Elements 2·pair and 2·pair+1 of the stream `key` of normal numbers: they share a block.
std::array<double, 2> normal_pair(uint64_t key, uint64_t pair) {
  const Block bits = philox({static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 0},
                            static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
  constexpr double kUnit = 1.0 / 4294967296.0;
  const double u = (bits[0] + 1.0) * kUnit;  // (0, 1]
  const double angle = 2 * std::numbers::pi * bits[1] * kUnit;
  const double radius = std::sqrt(-2 * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Elements 2·pair and 2·pair+1 of a stream of uniform numbers in [0, 1).
std::array<double, 2> uniform_pair(uint64_t key, uint64_t pair) {
  const Block bits = philox({static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 1},
                            static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
  constexpr double kUnit = 1.0 / 16777216.0;  // 24 bits: every one is a float
  return {static_cast<double>(bits[0] >> 8) * kUnit, static_cast<double>(bits[1] >> 8) * kUnit};
}

// A stream of numbers by (key, number of the pair), shifted and stretched.
struct Distribution {
  std::array<double, 2> (*pair)(uint64_t key, uint64_t pair);
  double shift, stretch;
};

// Elements first … first+count-1.
void fill_row(float* out, uint64_t key, uint64_t first, int64_t count, const Distribution& numbers) {
  const uint64_t end = first + static_cast<uint64_t>(count);
  for (uint64_t index = first; index < end;) {
    const auto pair = numbers.pair(key, index / 2);
    for (uint64_t half = index % 2; half < 2 && index < end; ++half, ++index)
      *out++ = static_cast<float>(numbers.shift + numbers.stretch * static_cast<float>(pair[half]));
  }
}

uint64_t stream_key(uint64_t seed, std::string_view name) {
  return fnv1a64(name) ^ (seed * 0x9E3779B97F4A7C15ULL + 0x632BE59BD9B4E019ULL);
}

void fill(const at::Tensor& out, uint64_t seed, std::string_view name, at::IntArrayRef global_shape,
          at::IntArrayRef offset, const Distribution& numbers) {
  if (out.numel() == 0 || out.is_meta()) return;
  const uint64_t key = stream_key(seed, name);
  check(out.dim() == 1 || out.dim() == 2, "{}: only vectors and matrices are drawn", name);
  at::Tensor drawn = at::empty(out.sizes(), at::kFloat);
  auto* data = drawn.mutable_data_ptr<float>();
  if (out.dim() == 1) {
    fill_row(data, key, static_cast<uint64_t>(offset[0]), out.numel(), numbers);
  } else {
    const int64_t rows_a_part = 1 + 4096 / out.size(1);
    ops::parallel_for(out.size(0), rows_a_part, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t first = (offset[0] + r) * global_shape[1] + offset[1];
        fill_row(data + r * out.size(1), key, static_cast<uint64_t>(first), out.size(1), numbers);
      }
    });
  }
  out.copy_(drawn);
}

}  // namespace

void fill_normal(const at::Tensor& out, uint64_t seed, std::string_view name, at::IntArrayRef global_shape,
                 at::IntArrayRef offset, double mean, double std) {
  fill(out, seed, name, global_shape, offset, {normal_pair, mean, std});
}

void fill_uniform(const at::Tensor& out, uint64_t seed, std::string_view name, at::IntArrayRef global_shape,
                  at::IntArrayRef offset, double bound) {
  fill(out, seed, name, global_shape, offset, {uniform_pair, -bound, 2 * bound});
}

void initialize(const Parameter& parameter, uint64_t seed) {
  const at::NoGradGuard no_grad;
  if (parameter.value.is_meta()) return;
  parameter.value.zero_();
  const Init& init = parameter.init;
  for (const auto& part : parameter.sharded()) {
    switch (init.kind) {
      case Init::Kind::kZeros:
        break;
      case Init::Kind::kOnes:
        part.local.fill_(1);
        break;
      case Init::Kind::kNormal:
        fill_normal(part.local, seed, part.name, part.global_shape, part.offset, 0, init.std);
        break;
      case Init::Kind::kUniform:
        fill_uniform(part.local, seed, part.name, part.global_shape, part.offset, init.std);
        break;
    }
  }
}

void initialize(const ParameterSet& set, uint64_t seed) {
  for (const auto& parameter : set.all()) initialize(*parameter, seed);
}

}  // namespace megalith::nn
