#include "megalith/nn/parameter/quantized_value.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/nn/footprint/footprint_scope.h"

namespace megalith::nn {

bool can_be_quantized(const ParameterSpec& spec) {
  const bool linear =
      spec.use == WeightUse::kColumn || spec.use == WeightUse::kRow || spec.use == WeightUse::kReplicated;
  return linear && spec.role == ParameterRole::kWeight && !spec.is_embedding_or_head && is_in_layer(spec.name);
}

at::Tensor quantized_placeholder(at::IntArrayRef shape, const at::TensorOptions& options) {
  if (options.device().is_meta()) return at::empty(shape, options);
  const at::NoGradGuard no_grad;
  return at::full({1}, std::numeric_limits<double>::quiet_NaN(), options).expand(shape);
}

void read_quantized(const Parameter& parameter, int64_t row, int64_t column, const at::Tensor& to) {
  const at::NoGradGuard no_grad;
  const QuantizedValue& value = *parameter.attached.quantized;
  const auto& parts = parameter.spec.parts;
  check(value.parts.size() == parts.size(), "{} is read before its numbers were loaded", parameter.spec.name);
  const int64_t end = row + to.size(0);
  int64_t covered = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t first = std::max(row, parts[i].row), last = std::min(end, parts[i].row + parts[i].extent[0]);
    if (first >= last) continue;
    ops::read_quantized(value.parts[i], first - parts[i].row, column, to.narrow(0, first - row, last - first));
    covered += last - first;
  }
  if (covered == to.size(0)) return;
  // Rows of padding, between parts or after them.
  for (int64_t at = row; at < end; ++at) {
    const bool held = std::ranges::any_of(
        parts, [&](const ParameterPart& part) { return at >= part.row && at < part.row + part.extent[0]; });
    if (!held) to.select(0, at - row).zero_();
  }
}

int64_t quantized_bytes(const Parameter& parameter) {
  int64_t total = 0;
  for (const ops::QuantizedMatrix& part : parameter.attached.quantized->parts)
    for (const at::Tensor& t : ops::tensors_of(part)) total += static_cast<int64_t>(t.nbytes());
  return total;
}

}  // namespace megalith::nn
