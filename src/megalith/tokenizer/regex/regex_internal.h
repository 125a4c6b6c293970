// Regex: regular expressions of a tokenizer.json, written in Oniguruma's syntax and run by PCRE2 with its JIT compiler.
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

// Translates an expression from Oniguruma's syntax to an equivalent one for PCRE2. Handles these differences: \s \d \w
// \h and their negations (also within classes), \p{…} with Oniguruma's names, nested and intersected classes ([a[bc]],
// [\p{L}&&[^\p{Han}]]), POSIX brackets, \uHHHH, \v, \O, {,n}, a quantified interval (x{1,3}+ is not possessive in
// Oniguruma), and (?m) for "dot matches newline". Throws DataError, beginning with `where`, for anything that cannot be
// expressed.
std::string pcre2_from_oniguruma(std::string_view pattern, const std::string& where, Coverage coverage);

// A compiled expression. Immutable: any number of threads may match with it, each through its own Matcher.
class Regex {
  struct Code;

 public:
  // `where` names the place of the expression (file and field) in messages. Throws DataError when it does not compile.
  Regex(std::string_view oniguruma_pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Finds matches from left to right in one subject after another. For one thread; the Regex outlives it. Its working
  // memory is borrowed from the Regex, so it is cheap to make.
  class Matcher {
   public:
    // The subjects passed to start() are parts of `text`.
    Matcher(const Regex& regex, std::string_view text);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    // `subject` is valid UTF-8 and outlives the search.
    void start(std::string_view subject);
    // Returns the next match as [begin, end). Empty matches are found, but not directly after the previous match.
    // Throws DataError when a match takes more than kMatchLimit steps: the expression is not suitable for such a text.
    std::optional<std::pair<size_t, size_t>> next();

   private:
    friend struct Code;
    // Match data and the position of the search.
    struct State;
    const Code& code_;
    std::unique_ptr<State> state_;
  };

  // Seconds of backtracking at most; expressions of published tokenizers need a few steps per byte.
  static constexpr unsigned kMatchLimit = 20'000'000;

 private:
  std::unique_ptr<Code> code_;
  // For texts with characters that this PCRE2 does not know; nullptr when it makes no difference.
  std::unique_ptr<Code> newer_;
};

}  // namespace megalith::tokenizer
