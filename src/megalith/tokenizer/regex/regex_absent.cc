// Replaces regex.cc in a build without PCRE2.
#include "megalith/base/error.h"
#include "megalith/tokenizer/regex/regex_internal.h"

namespace megalith::tokenizer {

struct Regex::Code {};
struct Regex::Matcher::State {};

void require_regex(const std::string& file) {
  throw ConfigError(fmt::format(
      "{}: this build has no PCRE2, which this tokenizer needs. Install it (Debian: libpcre2-dev) and build again.",
      file));
}

Regex::Regex(std::string_view, const std::string& where) { require_regex(where); }
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Matcher::Matcher(const Regex& regex, std::string_view) : code_(*regex.code_) {}
Regex::Matcher::~Matcher() = default;
void Regex::Matcher::start(std::string_view) {}
std::optional<std::pair<size_t, size_t>> Regex::Matcher::next() { return std::nullopt; }

}  // namespace megalith::tokenizer
