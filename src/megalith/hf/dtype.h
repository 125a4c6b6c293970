// Element types of safetensors files. This header does not need libtorch; scalar_type.h converts to ATen's types.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::hf {

// Named as in the file format: kF8E4M3 is "F8_E4M3", a float of 8 bits with 4 exponent and 3 mantissa bits.
enum class Dtype {
  // Floating point. Weights to be trained are kF64 to kBF16; the 8-bit types are read, but not as weights.
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  // Powers of two: the scales of microscaling formats.
  kF8E8M0,
  // Whole numbers with and without a sign, and truth values of one byte: buffers and token ids.
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

// Returns the name used in files: "BF16", "F8_E4M3", "BOOL".
std::string_view name(Dtype dtype);
// Returns the bytes of one element.
size_t item_bytes(Dtype dtype);
// Returns std::nullopt for a name that is not one of the above.
std::optional<Dtype> dtype_from_name(std::string_view name);
// Returns all names for messages: "F64, F32, … and BOOL".
std::string dtype_names();

}  // namespace megalith::hf
