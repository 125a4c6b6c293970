// The element types of safetensors files and their counterparts in ATen, one to one. Types that only one side has
// (complex numbers, quantized integers) are refused rather than reinterpreted.
#include "megalith/hf/scalar_type.h"

#include <array>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::hf {
namespace {

constexpr std::array kPairs = {
    std::pair{Dtype::kF64, at::ScalarType::Double},
    std::pair{Dtype::kF32, at::ScalarType::Float},
    std::pair{Dtype::kF16, at::ScalarType::Half},
    std::pair{Dtype::kBF16, at::ScalarType::BFloat16},
    std::pair{Dtype::kF8E4M3, at::ScalarType::Float8_e4m3fn},
    std::pair{Dtype::kF8E5M2, at::ScalarType::Float8_e5m2},
    std::pair{Dtype::kF8E8M0, at::ScalarType::Float8_e8m0fnu},
    std::pair{Dtype::kI64, at::ScalarType::Long},
    std::pair{Dtype::kI32, at::ScalarType::Int},
    std::pair{Dtype::kI16, at::ScalarType::Short},
    std::pair{Dtype::kI8, at::ScalarType::Char},
    std::pair{Dtype::kU64, at::ScalarType::UInt64},
    std::pair{Dtype::kU32, at::ScalarType::UInt32},
    std::pair{Dtype::kU16, at::ScalarType::UInt16},
    std::pair{Dtype::kU8, at::ScalarType::Byte},
    std::pair{Dtype::kBool, at::ScalarType::Bool},
};

}  // namespace

at::ScalarType scalar_type(Dtype dtype) {
  for (const auto& [ours, theirs] : kPairs)
    if (ours == dtype) return theirs;
  throw InternalError("a Dtype without a ScalarType");
}

Dtype dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kPairs)
    if (theirs == type) return ours;
  throw ConfigError(fmt::format("tensors of type {} cannot be stored in a safetensors file; it holds {}",
                                c10::toString(type), dtype_names()));
}

}  // namespace megalith::hf
