// Token types as numbers, names and C++ types. Tables are in the order of Megatron's codes, which begin with 1.
#include "megalith/data/indexed/token_type.h"

#include <limits>

namespace megalith::data {

std::optional<TokenType> token_type_of_code(uint8_t code) {
  if (code < 1 || code > 8) return std::nullopt;
  return static_cast<TokenType>(code);
}

int64_t token_bytes(TokenType type) {
  return visit_token_type(type, [](auto token) { return static_cast<int64_t>(sizeof token); });
}

std::string_view token_type_name(TokenType type) {
  constexpr std::string_view kNames[] = {"uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"};
  return kNames[static_cast<size_t>(type) - 1];
}

bool can_hold(TokenType type, int64_t id) {
  // Floating point is exact up to 2 to the number of its mantissa bits.
  if (type == TokenType::kFloat64) return id <= int64_t{1} << 53;
  if (type == TokenType::kFloat32) return id <= int64_t{1} << 24;
  return visit_token_type(
      type, [&](auto token) { return id <= static_cast<int64_t>(std::numeric_limits<decltype(token)>::max()); });
}

TokenType token_type_for_vocabulary(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kUint16 : TokenType::kInt32;  // Megatron's bound, a little below 2^16
}

}  // namespace megalith::data
