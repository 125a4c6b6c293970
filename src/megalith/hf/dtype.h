// The element types of safetensors files. No libtorch here: see scalar_type.h for the way to ATen's types.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::hf {

enum class Dtype {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

// As it is written in a file: "BF16", "F8_E4M3", "BOOL".
std::string_view name(Dtype dtype);
// Bytes of one element.
size_t item_bytes(Dtype dtype);
// Nothing for a name that is not above.
std::optional<Dtype> dtype_from_name(std::string_view name);
// "F64, F32, … and BOOL", for messages.
std::string dtype_names();

}  // namespace megalith::hf
