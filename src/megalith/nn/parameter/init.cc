// Initial weights. A tensor has one random stream, keyed by the seed and its global name; element (row, column) of the
// global tensor takes its number from the stream by position. A rank draws just its rectangle, and any layout draws the
// same numbers.
#include "megalith/nn/parameter/init.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/nn/parameter/quantized_value.h"
#include "megalith/ops/kernel/counter_normal.h"

namespace megalith::nn {

namespace {

// Returns the key of the random stream of a tensor. The constants only spread small seeds over all 64 bits (the first
// is 2^64 / φ); like everything here they must not change.
uint64_t stream_key(uint64_t seed, std::string_view name) {
  return fnv1a64(name) ^ (seed * 0x9E3779B97F4A7C15ULL + 0x632BE59BD9B4E019ULL);
}

// A rectangle to fill; a vector counts as one row of a matrix.
struct Place {
  at::Tensor out;
  ops::CountedRectangle where;
};
// Returns where the numbers of `out` lie in the stream of the global tensor.
Place place_of(const at::Tensor& out, std::string_view name, at::IntArrayRef global_shape, at::IntArrayRef offset) {
  check(out.dim() == 1 || out.dim() == 2, "{}: only vectors and matrices are drawn", name);
  if (out.dim() == 1) return {out.unsqueeze(0), {global_shape[0], 0, offset[0]}};
  return {out, {global_shape[1], offset[0], offset[1]}};
}

}  // namespace

void fill_normal(const at::Tensor& out, uint64_t seed, std::string_view name, at::IntArrayRef global_shape,
                 at::IntArrayRef offset, double mean, double std) {
  const Place place = place_of(out, name, global_shape, offset);
  ops::fill_counter_normal(place.out, stream_key(seed, name), place.where, mean, std);
}

void fill_uniform(const at::Tensor& out, uint64_t seed, std::string_view name, at::IntArrayRef global_shape,
                  at::IntArrayRef offset, double bound) {
  const Place place = place_of(out, name, global_shape, offset);
  ops::fill_counter_uniform(place.out, stream_key(seed, name), place.where, bound);
}

namespace {

// Fills a rectangle, which is zero, as `init` says.
void fill(const parallel::ShardedTensor& part, const Init& init, uint64_t seed) {
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

// Draws each whole tensor and keeps the rectangle of this rank: scales are those of the whole tensor.
void initialize_quantized(const Parameter& parameter, uint64_t seed) {
  QuantizedValue& value = *parameter.attached.quantized;
  value.parts.clear();
  for (const ParameterPart& part : parameter.spec.parts) {
    const at::Tensor whole = at::zeros(part.global_shape, parameter.value.options().requires_grad(false));
    fill({part.name, part.global_shape, {0, 0}, whole}, parameter.spec.init, seed);
    const ops::MatrixRectangle where{part.offset[0], part.extent[0], part.offset[1], part.extent[1],
                                     part.global_shape[1]};
    value.parts.push_back(ops::cut_quantized(ops::to_quantized(whole, value.format), where, whole.device()));
  }
}

}  // namespace

void initialize(const Parameter& parameter, uint64_t seed) {
  const at::NoGradGuard no_grad;
  if (parameter.value.is_meta()) return;
  if (parameter.attached.quantized) return initialize_quantized(parameter, seed);
  parameter.value.zero_();
  for (const auto& part : parameter.sharded()) fill(part, parameter.spec.init, seed);
}

void initialize(const ParameterSet& set, uint64_t seed) {
  for (const auto& parameter : set.all()) initialize(*parameter, seed);
}

}  // namespace megalith::nn
