// A template's source as tokens: stretches of text, and what stands in {{ … }} and {% … %}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer::jinja {

struct Token {
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
  std::string text;  // kText, kString: the content; kName, kOperator: as written
  int64_t integer = 0;
  double real = 0;

  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
  bool is_operator(std::string_view sign) const { return kind == Kind::kOperator && text == sign; }
};

// What a token is, for messages: "name 'x'", "end of print statement".
std::string describe(const Token& token);

// All tokens, kEnd last. Comments are gone, whitespace control is done (trim_blocks and lstrip_blocks are on, one line
// end at the very end is dropped), raw blocks are text. Throws DataError: name, line and what is wrong.
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace megalith::tokenizer::jinja
