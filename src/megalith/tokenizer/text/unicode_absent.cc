// Replaces unicode.cc in a build without utf8proc. Loading a tokenizer calls require_unicode and fails there with a
// message for users; a later call of anything else is a mistake of this program.
#include "megalith/base/error.h"
#include "megalith/tokenizer/text/unicode_internal.h"

namespace megalith::tokenizer {

namespace {

[[noreturn]] void absent() { throw InternalError("a Unicode function was called in a build without utf8proc"); }

}  // namespace

void require_unicode(const std::string& file) {
  throw ConfigError(
      fmt::format("{}: this build has no utf8proc, which this tokenizer needs. Install it (Debian: libutf8proc-dev) "
                  "and build again.",
                  file));
}

bool is_numeric(char32_t) { absent(); }
bool is_punctuation(char32_t) { absent(); }
bool is_word(char32_t) { absent(); }
bool is_mark(char32_t) { absent(); }
bool is_nonspacing_mark(char32_t) { absent(); }
bool is_other(char32_t) { absent(); }
bool is_letter(char32_t) { absent(); }
bool is_upper_letter(char32_t) { absent(); }
bool is_lower_letter(char32_t) { absent(); }
bool is_decimal_digit(char32_t) { absent(); }
void append_lower(std::string&, char32_t) { absent(); }
void append_upper(std::string&, char32_t) { absent(); }
void append_title(std::string&, char32_t) { absent(); }
// Only messages use it, so an approximation is good enough.
bool is_printable(char32_t c) { return c >= 0x20 && c != 0x7F; }
std::string normalize(NormalForm, std::string_view) { absent(); }
size_t grapheme_end(std::string_view, size_t) { absent(); }

}  // namespace megalith::tokenizer
