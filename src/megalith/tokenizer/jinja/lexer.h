// Splits a template's source into tokens: stretches of text, and the contents of {{ … }} and {% … %}.
//
//   Hi {{ name }}!   ->   kText "Hi ", kVariableBegin, kName "name", kVariableEnd, kText "!", kEnd
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer::jinja {

// One token, with the line at which it starts.
struct Token {
  // {{ and }} are kVariableBegin and kVariableEnd, {% and %} kBlockBegin and kBlockEnd.
  // Keywords such as `in` are kName, because jinja2 allows them as attributes.
  enum class Kind {
    kText,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  int line = 1;
  std::string text;  // kText, kString: the content; kName, kOperator: the source text
  // Values of kInteger and kFloat.
  int64_t integer = 0;
  double real = 0;

  // Whether it is this name (keywords are names, too) or this operator.
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
  bool is_operator(std::string_view sign) const { return kind == Kind::kOperator && text == sign; }
};

// Describes a token for messages: "name 'x'", "end of print statement".
std::string describe(const Token& token);

// Returns all tokens, kEnd last. Comments are removed, whitespace control is applied (trim_blocks and lstrip_blocks are
// on, a single newline at the very end is dropped), raw blocks are text. Throws DataError with name, line and problem.
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace megalith::tokenizer::jinja
