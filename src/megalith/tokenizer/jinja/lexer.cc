// A hand-written lexer with two states: outside tags it collects text, inside {{ … }} and {% … %} it reads names,
// literals and operators. Whitespace control happens here, because it changes the text around a tag: trim_blocks
// removes the newline after a block, lstrip_blocks the indentation before it, and "-" or "+" at a tag override both.
#include "megalith/tokenizer/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/tokenizer/jinja/string_literal.h"
#include "megalith/tokenizer/text/python_text.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer::jinja {

namespace {

constexpr size_t kNone = std::string_view::npos;

// ASCII only, whatever the locale.
bool is_digit(char c) { return c >= '0' && c <= '9'; }
// Letters of other scripts may be part of a name; all their bytes are >= 0x80.
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Like jinja2: all line ends become \n, and a single one at the very end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string source, const std::string& name) : source_(std::move(source)), name_(name) {}

  // Each round consumes at least one byte: text, a tag, or both.
  std::vector<Token> run() {
    while (at_ < source_.size()) read_text();
    add(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { throw DataError(fmt::format("{}:{}: {}", name_, line_, what)); }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }

  // Advances, counting lines.
  void advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
    if (count > 0) at_line_start_ = source_[at_ - 1] == '\n';
  }
  // Python's whitespace, as in jinja2's expressions.
  void skip_spaces() { advance(rest().size() - strip(rest(), std::nullopt, Side::kLeft).size()); }

  // Tokens carry the line at which they start; `advance` comes after.
  Token& add(Token::Kind kind, std::string text = {}) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
    return tokens_.back();
  }

  // Reads the text up to the next tag, then the tag.
  void read_text() {
    const std::string_view text = rest();
    size_t tag = kNone;
    // A lone brace is text.
    // A tag starts with {{, {% or {#.
    for (size_t i = text.find('{'); i != kNone; i = text.find('{', i + 1)) {
      if (i + 1 < text.size() && (text[i + 1] == '{' || text[i + 1] == '%' || text[i + 1] == '#')) {
        tag = i;
        break;
      }
    }
    if (tag == kNone) {
      add(Token::Kind::kText, std::string(text));
      advance(text.size());
      return;
    }
    const char kind = text[tag + 1];
    const char sign = tag + 2 < text.size() ? text[tag + 2] : ' ';
    add_text(text.substr(0, tag), sign, kind != '{');
    advance(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (kind == '#') return read_comment();
    if (kind == '%' && read_raw()) return;
    read_tag(kind == '{');
  }

  // Adds the text before a tag, whose sign is '-', '+' or anything else.
  // A "-" removes all whitespace before the tag. Otherwise, lstrip_blocks removes the indentation of a block or comment
  // that is first on its line.
  void add_text(std::string_view text, char sign, bool may_strip_line) {
    if (sign == '-') {
      text = strip(text, std::nullopt, Side::kRight);
    } else if (sign != '+' && may_strip_line) {
      const size_t newline = text.rfind('\n');
      const size_t start = newline == kNone ? 0 : newline + 1;
      if ((start > 0 || at_line_start_) && strip(text.substr(start), std::nullopt, Side::kBoth).empty())
        text = text.substr(0, start);
    }
    if (!text.empty()) add(Token::Kind::kText, std::string(text));
  }

  // Reads the end of a tag ("%}", "-%}", "+%}"; `mark` is '%', '#' or '}') and the whitespace that belongs to it.
  bool read_end(char mark) {
    const std::string_view text = rest();
    const std::array<char, 2> plain{mark, '}'};
    const std::string_view end(plain.data(), plain.size());
    if (text.starts_with(end)) {
      advance(2);
      if (mark != '}' && rest().starts_with('\n')) advance(1);  // trim_blocks: the newline after a block or comment
      return true;
    }
    // A plus sign is allowed at the end of blocks and comments only.
    if (text.size() < 3 || text.substr(1, 2) != end || (text[0] != '-' && (text[0] != '+' || mark == '}')))
      return false;
    advance(3);
    if (text[0] == '-') skip_spaces();
    return true;
  }

  // {# … #}, with "-#}" and "+#}" as ends of blocks have them. The contents are skipped, not lexed.
  void read_comment() {
    const int start = line_;
    for (;;) {
      const size_t end = rest().find("#}");
      if (end == kNone) {
        line_ = start;  // the message names the start
        fail("a comment starts here and does not end; \"#}\" is missing");
      }
      const std::string_view text = rest();
      const bool signed_end = end > 0 && (text[end - 1] == '-' || text[end - 1] == '+');
      advance(signed_end ? end - 1 : end);
      if (read_end('#')) return;
      advance(1);
    }
  }

  // Reads {% raw %} … {% endraw %} as plain text. Returns false when it is another block.
  bool read_raw() {
    std::string_view text = rest();
    size_t i = text.find_first_not_of(" \t\n\r\f\v");
    if (i == kNone || !text.substr(i).starts_with("raw")) return false;
    i = text.find_first_not_of(" \t\n\r\f\v", i + 3);
    if (i == kNone || !(text.substr(i).starts_with("%}") || text.substr(i).starts_with("-%}"))) return false;
    // The text begins after "raw %}". No newline is trimmed there, as jinja2 does not, either.
    const bool strip_after = text[i] == '-';
    advance(i + (strip_after ? 3 : 2));
    if (strip_after) skip_spaces();
    const int start = line_;
    const size_t begin = at_;
    for (size_t tag = source_.find("{%", at_); tag != kNone; tag = source_.find("{%", tag + 1)) {
      size_t word = tag + 2;
      const char sign = word < source_.size() ? source_[word] : ' ';
      if (sign == '-' || sign == '+') ++word;
      while (word < source_.size() && is_space(source_[word])) ++word;
      if (!std::string_view(source_).substr(word).starts_with("endraw")) continue;
      word += 6;
      while (word < source_.size() && is_space(source_[word])) ++word;
      add_text(std::string_view(source_).substr(begin, tag - begin), sign, true);
      advance(word - at_);
      if (read_end('%')) return true;
      fail("expected the end of the endraw block, \"%}\"");
    }
    line_ = start;
    fail("a raw block starts here and does not end; {% endraw %} is missing");
  }

  // Reads the tokens of a tag. Its end counts only outside brackets: {{ {'a': {}} }} contains "}}" earlier.
  void read_tag(bool is_variable) {
    add(is_variable ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin);
    const int start = line_;
    open_.clear();
    for (;;) {
      skip_spaces();
      if (at_ >= source_.size()) {
        line_ = start;
        fail(fmt::format("a {} starts here and does not end; \"{}\" is missing",
                         is_variable ? "print statement" : "block", is_variable ? "}}" : "%}"));
      }
      // Whitespace control may skip lines, but the end of the tag is on this one.
      const int end_line = line_;
      if (open_.empty() && read_end(is_variable ? '}' : '%')) {
        add(is_variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd).line = end_line;
        return;
      }
      read_token();
    }
  }

  void read_token() {
    const char c = source_[at_];
    if (is_digit(c)) return read_number();
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < source_.size() && is_name_part(source_[end])) ++end;
      add(Token::Kind::kName, source_.substr(at_, end - at_));
      return advance(end - at_);
    }
    if (c == '"' || c == '\'') return read_string();
    read_operator();
  }

  void read_operator() {
    // Longer operators come first.
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                               "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto longest =
        std::ranges::find_if(kOperators, [&](std::string_view sign) { return rest().starts_with(sign); });
    if (longest == std::end(kOperators)) fail(fmt::format("unexpected character {}", python_repr(rest().substr(0, 1))));
    const char sign = (*longest)[0];
    if (sign == '(' || sign == '[' || sign == '{') {
      open_ += sign;
    } else if (sign == ')' || sign == ']' || sign == '}') {
      const char opened = sign == ')' ? '(' : sign == ']' ? '[' : '{';
      if (open_.empty()) fail(fmt::format("unexpected '{}'", sign));
      if (open_.back() != opened)
        fail(fmt::format("unexpected '{}', expected the one that closes '{}'", sign, open_.back()));
      open_.pop_back();
    }
    add(Token::Kind::kOperator, std::string(*longest));
    advance(longest->size());
  }

  // The end is the first quote of the same kind that no backslash precedes; the escapes are resolved afterwards.
  void read_string() {
    const std::string_view text = rest();
    size_t end = 1;
    while (end < text.size() && text[end] != text[0]) end += text[end] == '\\' ? 2 : 1;
    if (end >= text.size()) fail(fmt::format("a string starts here and does not end; {} is missing", text[0]));
    std::string problem;
    const auto content = unescape_string(text.substr(1, end - 1), problem);
    if (!content) fail(problem);
    add(Token::Kind::kString, *content);
    advance(end + 1);
  }

  // Returns the end of the digits of a base, with single underscores between them, that start at `at`.
  size_t digits_end(size_t at, std::string_view digits) const {
    while (at < source_.size() &&
           (digits.find(source_[at]) != kNone ||
            (source_[at] == '_' && at + 1 < source_.size() && digits.find(source_[at + 1]) != kNone)))
      ++at;
    return at;
  }

  // 12, 1_000, 0xff, 0o17, 0b11, 1.5, 2e-3. A sign is an operator.
  void read_number() {
    constexpr std::string_view kDecimal = "0123456789";
    const char base = at_ + 1 < source_.size() && source_[at_] == '0' ? source_[at_ + 1] : ' ';
    const std::string_view digits = base == 'x' || base == 'X'   ? "0123456789abcdefABCDEF"
                                    : base == 'o' || base == 'O' ? "01234567"
                                    : base == 'b' || base == 'B' ? "01"
                                                                 : "";
    if (!digits.empty())
      return add_integer(digits_end(at_ + 2, digits), digits.size() > 16 ? 16 : static_cast<int>(digits.size()));
    size_t end = digits_end(at_, kDecimal);
    const size_t whole_end = end;
    // "1.x" is an attribute of 1, so a point needs a digit after it.
    const auto digit_at = [&](size_t i) { return i < source_.size() && is_digit(source_[i]); };
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) end = digits_end(end + 1, kDecimal);
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const size_t sign = end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-') ? 1 : 0;
      if (digit_at(end + 1 + sign)) end = digits_end(end + 1 + sign, kDecimal);
    }
    if (end == whole_end) return add_integer(end, 10);
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    const auto value = parse_double(text);
    if (!value) fail(fmt::format("\"{}\" is not a number", text));
    add(Token::Kind::kFloat, text).real = *value;
    advance(end - at_);
  }

  void add_integer(size_t end, int base) {
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    const auto value = base == 10 ? parse_int(text) : parse_based_int(std::string_view(text).substr(2), base);
    if (!value) fail(fmt::format("\"{}\" is not a whole number of 64 bits", text));
    add(Token::Kind::kInteger, text).integer = *value;
    advance(end - at_);
  }

  // The source with \n as its only line end; all positions are bytes in it.
  std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::string open_;  // open brackets of the current tag
};

}  // namespace

// The words of jinja2's messages.
std::string describe(const Token& token) {
  switch (token.kind) {
    case Token::Kind::kText:
      return "template text";
    case Token::Kind::kVariableBegin:
      return "begin of print statement";
    case Token::Kind::kVariableEnd:
      return "end of print statement";
    case Token::Kind::kBlockBegin:
      return "begin of statement block";
    case Token::Kind::kBlockEnd:
      return "end of statement block";
    case Token::Kind::kEnd:
      return "end of template";
    case Token::Kind::kString:
      return python_repr(token.text);
    default:
      return fmt::format("'{}'", token.text);
  }
}

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  if (const auto bad = first_invalid_utf8(source))
    throw DataError(fmt::format("{}: the template is not valid UTF-8: byte {} is 0x{:02X}", name, *bad,
                                static_cast<unsigned char>(source[*bad])));
  return Lexer(normalize_newlines(source), name).run();
}

}  // namespace megalith::tokenizer::jinja
