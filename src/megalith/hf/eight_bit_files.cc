#include "megalith/hf/eight_bit_files.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "megalith/base/error.h"

namespace megalith::hf {

namespace {

constexpr std::string_view kScaleSuffix = ".SCB", kWeightSuffix = ".weight", kFormatSuffix = ".weight_format";

}  // namespace

std::string eight_bit_name(std::string_view scales) {
  if (!scales.ends_with(kScaleSuffix)) return "";
  return std::string(scales.substr(0, scales.size() - kScaleSuffix.size())).append(kWeightSuffix);
}

std::vector<std::string> eight_bit_parts(std::string_view name) {
  const std::string_view prefix = name.substr(0, name.size() - kWeightSuffix.size());
  return {std::string(prefix).append(kScaleSuffix), std::string(prefix).append(kFormatSuffix)};
}

void check_eight_bit(const TensorInfo& weight, const TensorInfo& scales, const at::Tensor& format,
                     const std::string& folder) {
  check<DataError>(weight.dtype == Dtype::kI8 && weight.shape.size() == 2,
                   "{}: {} has scales of 8 bits ({}), but is of type {} and shape [{}]; it must be a matrix of type I8",
                   folder, weight.name, scales.name, name(weight.dtype), fmt::join(weight.shape, ", "));
  check<DataError>(
      scales.dtype == Dtype::kF32 && scales.shape == std::vector<int64_t>{weight.shape[0]},
      "{}: {} is of type {} and shape [{}]; {} in 8 bits, of {} rows, needs one number of type F32 per row", folder,
      scales.name, name(scales.dtype), fmt::join(scales.shape, ", "), weight.name, weight.shape[0]);
  if (!format.defined()) return;
  const bool by_rows = format.numel() == 1 && at::isIntegralType(format.scalar_type(), /*includeBool=*/false) &&
                       format.item<int64_t>() == 0;
  check<DataError>(by_rows,
                   "{}: the codes of {} are in an order for the GPU kernels of an old version of bitsandbytes"
                   " (weight_format), and only those row by row can be read. Save the model with a new version",
                   folder, weight.name);
}

ops::EightBitTensor read_eight_bit_tensor(const std::string& name,
                                          const std::function<at::Tensor(const std::string&)>& tensor) {
  return {tensor(name).contiguous(), tensor(eight_bit_parts(name)[0]).contiguous()};
}

}  // namespace megalith::hf
