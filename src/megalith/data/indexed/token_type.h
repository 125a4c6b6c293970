// TokenType: how tokens are stored in a .bin file.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace megalith::data {

// The numbers are stored in .idx files and must not change. They are the codes of Megatron's DType. Text uses kUint16
// and kInt32; the others occur in files of other programs.
enum class TokenType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat64 = 6,
  kFloat32 = 7,
  kUint16 = 8,
};

// Returns std::nullopt for a code that is not a TokenType.
std::optional<TokenType> token_type_of_code(uint8_t code);
// Returns the size of one token.
int64_t token_bytes(TokenType type);
// Returns NumPy's name: "uint16", "int32", ….
std::string_view token_type_name(TokenType type);
// Whether `id`, which must not be negative, can be stored exactly. Floating-point types hold integers up to 2^24
// (float32) and 2^53 (float64).
bool can_hold(TokenType type, int64_t id);

// Returns the type that Megatron's writer chooses: uint16 for fewer than 65500 tokens, otherwise int32. Two bytes per
// token where possible: a corpus of 10^12 tokens then takes 2 TB instead of 4.
TokenType token_type_for_vocabulary(int64_t vocab_size);

// Calls visit(T{}) with the C++ type that `type` stores. Lets a loop over tokens be compiled once per type, with the
// choice outside the loop.
template <typename Visitor>
decltype(auto) visit_token_type(TokenType type, Visitor&& visit) {
  switch (type) {
    case TokenType::kUint8:
      return visit(uint8_t{});
    case TokenType::kInt8:
      return visit(int8_t{});
    case TokenType::kInt16:
      return visit(int16_t{});
    case TokenType::kInt64:
      return visit(int64_t{});
    case TokenType::kFloat64:
      return visit(double{});
    case TokenType::kFloat32:
      return visit(float{});
    case TokenType::kUint16:
      return visit(uint16_t{});
    case TokenType::kInt32:
      break;
  }
  return visit(int32_t{});
}

}  // namespace megalith::data
