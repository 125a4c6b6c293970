// Translates Oniguruma's syntax: reads it from left to right and writes it again for PCRE2. regex_internal.h lists the
// differences. The translator remembers where the last atom begins in the output, because some quantifiers have to be
// wrapped around it. Examples:
//   \p{L}{1,3}+   ->  (?:\p{L}{1,3})+     + after {…} repeats once more instead of being possessive
//   a{,2}         ->  a{0,2}
//   (?m:.)        ->  (?s:.)              the dot matches newlines
//   [a-z&&[^x]]   ->  a look-ahead (pcre2_class)
// Whatever is not known to mean the same in both is refused, since a tokenizer that cuts differently is worse than
// none.
#include <charconv>

#include "megalith/base/error.h"
#include "megalith/tokenizer/regex/onig_class_internal.h"
#include "megalith/tokenizer/regex/regex_internal.h"
#include "megalith/tokenizer/text/utf8.h"

namespace megalith::tokenizer {

namespace {

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }
bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where, Coverage coverage)
      : in_(pattern), where_(where), coverage_(coverage) {}

  // Returns the whole expression in PCRE2's syntax.
  std::string run() {
    groups_.push_back({0, ""});
    while (at_ < in_.size()) step();
    if (groups_.size() != 1) fail("a group is not closed");
    out_ += groups_.back().closing;
    return std::move(out_);
  }

 private:
  static constexpr size_t kNone = std::string::npos;
  static constexpr int kMaxDepth = 100;  // nesting of classes

  // One open group of the output; the first stands for the whole expression.
  struct Group {
    size_t start;         // offset in out_
    std::string closing;  // ends option groups that last to the end of this one
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: the regular expression \"{}\": {} (at byte {})", where_, in_, what, at_));
  }

  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  // Consumes `text` if the input continues with it.
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }

  // Translates one construct. Every branch sets atom_: to the start of what a quantifier after it repeats, or to kNone.
  void step() {
    const char c = in_[at_];
    switch (c) {
      case '\\':
        start_atom();
        escape();
        return;
      case '[':
        start_atom();
        ++at_;
        out_ += pcre2_class(bracket(0));
        return;
      case '(':
        open_group();
        return;
      case ')':
        close_group();
        return;
      case '*':
      case '+':
      case '?':
        quantifier(std::string(1, c), 1);
        return;
      case '{':
        if (interval()) return;
        start_atom();
        out_ += "\\{";
        ++at_;
        return;
      case '|':
      case '^':
      case '$':
        atom_ = kNone;
        out_ += c;
        ++at_;
        return;
      default:
        start_atom();
        copy_character();
        return;
    }
  }

  // Whatever is written next can be repeated.
  void start_atom() { atom_ = out_.size(); }

  void copy_character() {
    const size_t length = utf8_length(in_[at_]);
    out_ += in_.substr(at_, length);
    at_ += length;
  }

  // -------------------------------------------------------------------------------------------------- repetition

  // Writes a quantifier of `length` input bytes. A second one after it applies to the whole (x{1,3}+ is (?:x{1,3})+).
  // `interval`: {…}, after which + is not possessive in Oniguruma; `fixed`: {n}, after which ? is not lazy.
  void quantifier(const std::string& text, size_t length, bool interval = false, bool fixed = false) {
    if (atom_ == kNone) fail("there is nothing to repeat");
    at_ += length;
    out_ += text;
    if (!fixed && take("?")) {
      out_ += '?';
    } else if (!interval && take("+")) {
      out_ += '+';
    }
    if (at_ < in_.size() &&
        (std::string_view("*+?").find(in_[at_]) != std::string_view::npos || interval_length() > 0)) {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
  }

  // Returns the length of {n}, {n,}, {n,m} or {,m} here; 0 when the brace is a plain character.
  size_t interval_length() const {
    if (!next_is("{")) return 0;
    // Spaces are not allowed inside, as in Oniguruma.
    size_t i = at_ + 1;
    const size_t low = i;
    while (i < in_.size() && is_ascii_digit(in_[i])) ++i;
    bool number = i > low;
    if (i < in_.size() && in_[i] == ',') {
      const size_t high = ++i;
      while (i < in_.size() && is_ascii_digit(in_[i])) ++i;
      number = number || i > high;
    }
    return number && i < in_.size() && in_[i] == '}' ? i + 1 - at_ : 0;
  }

  // Translates an interval if there is one here.
  bool interval() {
    const size_t length = interval_length();
    if (length == 0) return false;
    std::string text(in_.substr(at_, length));
    if (text[1] == ',') text.insert(1, "0");  // PCRE2 takes {,n} literally
    quantifier(text, length, true, text.find(',') == std::string::npos);
    return true;
  }

  // ------------------------------------------------------------------------------------------------------ groups

  void open_group() {
    const size_t start = out_.size();
    atom_ = kNone;
    if (take("(?#")) {
      const size_t end = in_.find(')', at_);
      if (end == kNone) fail("a comment is not closed");
      at_ = end + 1;
      return;
    }
    if (!next_is("(?")) {
      ++at_;
      out_ += '(';
      groups_.push_back({start, ""});
      return;
    }
    // Groups that both write alike.
    for (const std::string_view head : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (!take(head)) continue;
      out_ += head;
      groups_.push_back({start, ""});
      return;
    }
    if (next_is("(?<")) {
      const size_t end = in_.find('>', at_);
      if (end == kNone) fail("the name of a group is not closed");
      out_ += in_.substr(at_, end + 1 - at_);
      at_ = end + 1;
      groups_.push_back({start, ""});
      return;
    }
    open_options(start);
  }

  // (?i:…) and (?i): the latter lasts to the end of the enclosing group and takes its alternatives in: a(?i)b|c is
  // a(?i:b|c) in Oniguruma, but ab|c with an option in PCRE2. So it becomes a group that `closing` ends.
  void open_options(size_t start) {
    at_ += 2;
    std::string options;
    for (; at_ < in_.size() && in_[at_] != ':' && in_[at_] != ')'; ++at_) {
      switch (in_[at_]) {
        case 'i':
          options += 'i';
          break;
        case 'm':  // Oniguruma's (?m) is PCRE2's (?s)
          options += 's';
          break;  // the dot matches a newline
        case '-':
          options += '-';
          break;
        default:
          fail("this kind of group is not supported; i and m are the options that are");
      }
    }
    if (at_ == in_.size()) fail("a group is not closed");
    out_ += "(?" + options + ":";
    if (in_[at_++] == ':') {
      groups_.push_back({start, ""});
    } else {
      groups_.back().closing += ')';
    }
  }

  void close_group() {
    if (groups_.size() == 1) fail("a group is closed that was not opened");
    out_ += groups_.back().closing + ")";
    atom_ = groups_.back().start;
    groups_.pop_back();
    ++at_;
  }

  // ------------------------------------------------------------------------------------------------------ escapes

  // Outside of classes. Sets come first: their letters do not stand for characters.
  void escape() {
    if (at_ + 1 == in_.size()) fail("it ends with a backslash");
    const char c = in_[at_ + 1];
    if (const auto set = class_of_escape(c, coverage_)) {
      at_ += 2;
      write_set(*set);
    } else if ((c == 'p' || c == 'P') && at_ + 2 < in_.size() && in_[at_ + 2] == '{') {
      write_set(property());
    } else if (c == 'b' || c == 'B') {
      at_ += 2;
      word_boundary(c == 'B');
    } else if (c == 'O') {
      at_ += 2;
      out_ += "(?s:.)";
    } else if (std::string_view("AzZGKRN").find(c) != std::string_view::npos || (c >= '1' && c <= '9')) {
      // These mean the same in both.
      out_ += {'\\', c};
      at_ += 2;
      while (is_ascii_digit(c) && at_ < in_.size() && is_ascii_digit(in_[at_])) out_ += in_[at_++];
    } else if (c == 'k' || c == 'g') {
      const size_t end = in_.find('>', at_);
      if (at_ + 2 == in_.size() || in_[at_ + 2] != '<' || end == kNone)
        fail("a reference needs a name in angle brackets");
      out_ += in_.substr(at_, end + 1 - at_);
      at_ = end + 1;
    } else {
      write_code(character_escape());
    }
  }

  void write_set(const CharacterItems& set) {
    CharacterSetNode node;
    node.add(set);
    // A single property needs no brackets, and PCRE2 matches it faster without.
    const bool one = node.nested.empty() && node.items.size() > 3 && (node.items[1] == 'p' || node.items[1] == 'P') &&
                     node.items.find('}') == node.items.size() - 1;
    out_ += one ? node.items : pcre2_class(node);
  }

  // PCRE2's \b uses its own idea of a word, so the boundary is written out with look-arounds.
  void word_boundary(bool negated) {
    const std::string word = "[" + class_of_escape('w', coverage_)->items + "]";
    out_ += negated ? fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word)
                    : fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word);
  }

  // Letters and digits stand for themselves; all others as numbers, so that none has a meaning.
  void write_code(char32_t code) {
    if (code < 0x80 && (is_ascii_letter(static_cast<char>(code)) || is_ascii_digit(static_cast<char>(code)))) {
      out_ += static_cast<char>(code);
    } else {
      out_ += hex_item(code);
    }
  }

  static std::string hex_item(char32_t code) { return fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(code)); }

  // Reads \p{name}, \P{name} or \p{^name}; the input is at the backslash.
  CharacterItems property() {
    const bool negated = in_[at_ + 1] == 'P';
    const size_t end = in_.find('}', at_);
    if (end == kNone) fail("the name of a property is not closed");
    CharacterItems set = class_of_property(in_.substr(at_ + 3, end - at_ - 3), coverage_);
    set.negated = set.negated != negated;
    at_ = end + 1;
    return set;
  }

  // Reads an escape that means one character, as a code point; the input is at the backslash.
  char32_t character_escape() {
    const char c = in_[at_ + 1];
    at_ += 2;
    switch (c) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1B;
      case 'u':
        return number(4, 4, 16);
      case 'x':
        return hexadecimal();
      case '0':
        return is_octal_next() ? number(1, 2, 8) : 0;
      case 'c':
        if (at_ == in_.size()) fail("\\c needs a character");
        return static_cast<unsigned char>(in_[at_++]) & 0x1F;
      case 'C':
      case 'M':
      case 'X':
      case 'y':
      case 'Y':
        fail(fmt::format("\\{} is not supported", c));
      default:
        break;
    }
    // An escaped character that has no meaning of its own is that character: \. or \あ.
    --at_;
    const char32_t code = code_point_at(in_, at_);
    at_ += utf8_length(in_[at_]);
    return code;
  }

  // \0 alone is NUL, \017 is octal.
  bool is_octal_next() const { return at_ < in_.size() && in_[at_] >= '0' && in_[at_] <= '7'; }

  // Reads `least` to `most` digits; fails for surrogates and for numbers beyond Unicode.
  char32_t number(size_t least, size_t most, int base) {
    uint32_t value = 0;
    const std::string_view digits = in_.substr(at_, most);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    const auto length = static_cast<size_t>(end - digits.data());
    if (error != std::errc() || length < least || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
      fail("the number is missing or not a character");
    at_ += length;
    return value;
  }

  // Reads \x{4e00}, \x41, or \xe4\xb8\x80, where numbers from 80 on are bytes of UTF-8.
  char32_t hexadecimal() {
    if (take("{")) {
      const char32_t code = number(1, 6, 16);
      if (!take("}")) fail("\\x{ is not closed");
      return code;
    }
    const char32_t first = number(1, 2, 16);
    if (first < 0x80) return first;
    std::string bytes(1, static_cast<char>(first));
    while (utf8_part(bytes, 0).kind == Utf8Part::Kind::kUnfinished && take("\\x"))
      bytes += static_cast<char>(number(2, 2, 16));
    if (utf8_part(bytes, 0).kind != Utf8Part::Kind::kCharacter) fail("bytes that are not valid UTF-8; write \\x{…}");
    return code_point_at(bytes, 0);
  }

  // ------------------------------------------------------------------------------------------------------ classes

  // Reads the class whose opening bracket was just read, up to and including its closing one.
  CharacterSetNode bracket(int depth) {
    if (depth > kMaxDepth) fail("classes are nested too deeply");
    CharacterSetNode set;
    set.negated = take("^");
    // a&&b&&c: the first operand is the set itself, the others go to `also`.
    CharacterSetNode* part = &set;  // the current operand of an intersection
    std::vector<CharacterSetNode> parts;
    // A "]" directly after the opening bracket is a character.
    for (bool first = true;; first = false) {
      if (at_ >= in_.size()) fail("a class is not closed");
      if (!first && take("]")) break;
      if (take("&&")) {
        parts.emplace_back();
        part = &parts.back();
      } else {
        class_item(*part, depth);
      }
    }
    set.also = std::move(parts);
    return set;
  }

  // One item of a class: a POSIX name, a nested class, a set, a character or a range.
  void class_item(CharacterSetNode& node, int depth) {
    if (take("[:")) {
      const size_t end = in_.find(":]", at_);
      if (end == kNone) fail("a bracket [: is not closed");
      const std::string_view name = in_.substr(at_, end - at_);
      // Only within brackets does punctuation include symbols.
      node.add(name == "punct" ? CharacterItems{R"(\p{P}\p{S})"} : class_of_property(name, coverage_));
      at_ = end + 2;
    } else if (take("[")) {
      node.nested.push_back(bracket(depth + 1));
    } else if (const auto set = class_escape()) {
      node.add(*set);
      if (next_is("-") && !next_is("-]")) {  // [\w-.]: the hyphen is a character
        node.items += "\\-";
        ++at_;
      }
    } else {
      range(node);
    }
  }

  // Reads a set within a class: \s, \p{L}, …
  std::optional<CharacterItems> class_escape() {
    if (!next_is("\\") || at_ + 1 == in_.size()) return std::nullopt;
    const char c = in_[at_ + 1];
    if ((c == 'p' || c == 'P') && at_ + 2 < in_.size() && in_[at_ + 2] == '{') return property();
    const auto set = class_of_escape(c, coverage_);
    if (set) at_ += 2;
    return set;
  }

  // \b is a backspace inside a class.
  char32_t class_character() {
    if (next_is("\\b")) {
      at_ += 2;
      return '\b';
    }
    if (in_[at_] == '\\') {
      if (at_ + 1 == in_.size()) fail("it ends with a backslash");
      return character_escape();
    }
    const char32_t code = code_point_at(in_, at_);
    at_ += utf8_length(in_[at_]);
    return code;
  }

  // A hyphen is a character unless it stands between two characters: [a-], [a-[b]] and [a-&&b] have none.
  void range(CharacterSetNode& node) {
    const char32_t low = class_character();
    node.items += hex_item(low);
    if (!next_is("-") || next_is("-]") || next_is("-[") || next_is("-&&") || at_ + 1 == in_.size()) return;
    ++at_;
    const size_t before = at_;
    if (class_escape()) {
      at_ = before;
      fail("a range ends with a set of characters");
    }
    const char32_t high = class_character();
    if (high < low) fail("a range ends before it begins");
    node.items += "-" + hex_item(high);
  }

  std::string_view in_;
  const std::string& where_;
  Coverage coverage_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = kNone;  // offset in out_ of the atom that a quantifier would repeat
  std::vector<Group> groups_;
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where, Coverage coverage) {
  return Translator(pattern, where, coverage).run();
}

}  // namespace megalith::tokenizer
