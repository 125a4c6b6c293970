// Initial weights. A tensor has one random stream, keyed by the seed and its global name; element (row, column) of the
// global tensor takes its number from the stream by position. A rank draws just its rectangle, and any layout draws the
// same numbers.
#include "megalith/nn/parameter/init.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
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

void initialize(const Parameter& parameter, uint64_t seed) {
  const at::NoGradGuard no_grad;
  if (parameter.value.is_meta()) return;
  parameter.value.zero_();
  const Init& init = parameter.spec.init;
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
