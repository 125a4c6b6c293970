// Regular expressions as a tokenizer.json means them: Oniguruma's syntax, run by PCRE2 with its JIT compiler.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "megalith/tokenizer/regex/onig_class_internal.h"

namespace megalith::tokenizer {

// Throws ConfigError, naming the library and `file`, when the build has no PCRE2.
void require_regex(const std::string& file);

// Turns an expression in Oniguruma's syntax into one for PCRE2 with the same meaning. Differences that are handled:
// \s \d \w \h and their negations (also within classes), \p{…} with Oniguruma's names, nested and intersected classes
// ([a[bc]], [\p{L}&&[^\p{Han}]]), POSIX brackets, \uHHHH, \v, \O, {,n}, a quantified interval (x{1,3}+ is not
// possessive there), (?m) for "dot matches newline". Throws DataError for what cannot be expressed, beginning with
// `where`.
std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where, Coverage coverage);

// A compiled expression. Immutable: any number of threads may match with it, each through a Matcher of its own.
class Regex {
  struct Code;

 public:
  // `where` names the place of the expression (file and field) for error messages. Throws DataError when it does not
  // compile.
  Regex(std::string_view oniguruma_pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Finds matches from left to right in one subject after another. For one thread; the Regex outlives it. Its working
  // memory is borrowed from the Regex, so that making one costs little.
  class Matcher {
   public:
    // `text` is what the subjects are parts of.
    Matcher(const Regex& regex, std::string_view text);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    // Valid UTF-8 that outlives the search.
    void start(std::string_view subject);
    // The next match as [begin, end). Empty matches are found, but not directly behind the match before. Throws
    // DataError when a match takes more steps than kMatchLimit: the expression is not fit for such text.
    std::optional<std::pair<size_t, size_t>> next();

   private:
    friend struct Code;
    struct State;
    const Code& code_;
    std::unique_ptr<State> state_;
  };

  static constexpr unsigned kMatchLimit = 20'000'000;

 private:
  std::unique_ptr<Code> code_;
  std::unique_ptr<Code>
      newer_;  // for texts with characters that this PCRE2 does not know; null when it makes no difference
};

}  // namespace megalith::tokenizer
