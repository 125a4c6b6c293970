// Pattern: the target of a Split or a Replace (a text, a regular expression or characters of a kind), and how pieces
// are cut at it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "megalith/tokenizer/regex/regex_internal.h"
#include "megalith/tokenizer/text/pieces_internal.h"

namespace megalith::tokenizer {

// Immutable.
class Pattern {
 public:
  // A test of one character, such as is_punctuation.
  using Predicate = bool (*)(char32_t);

  // A text, which must not be empty, or an expression.
  static Pattern literal(std::string text) { return Pattern(std::move(text)); }
  static Pattern regex(Regex regex) { return Pattern(std::move(regex)); }
  // Every character for which the predicate holds is a match.
  static Pattern characters(Predicate predicate) { return Pattern(predicate); }

  // Finds matches from left to right, in one text after another. For one thread; the Pattern outlives it.
  class Search {
   public:
    // The texts passed to start() are parts of `whole`.
    Search(const Pattern& pattern, std::string_view whole);
    // Begins a new text. next() returns its next match as [begin, end), std::nullopt after the last.
    void start(std::string_view text);
    std::optional<std::pair<size_t, size_t>> next();

   private:
    // One of three kinds; a regular expression has a matcher.
    const Pattern& pattern_;
    std::optional<Regex::Matcher> matcher_;
    std::string_view text_;
    size_t at_ = 0;
  };

 private:
  using Kind = std::variant<std::string, Regex, Predicate>;
  explicit Pattern(Kind kind) : kind_(std::move(kind)) {}
  Kind kind_;
};

// The treatment of matches, as in tokenizers' SplitDelimiterBehavior: dropped, pieces of their own, joined with the
// text before or after them, or joined with adjacent matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Cuts every piece at the matches of `pattern`; with `invert`, at everything that is not a match.
// "a1b" at digits: Isolated gives a, 1, b; Removed gives a, b.
void split_pieces(Pieces& pieces, const Pattern& pattern, SplitBehavior behavior, bool invert = false);

// Returns the text with every match replaced by `content`.
std::string replace_matches(std::string_view text, const Pattern& pattern, std::string_view content);

}  // namespace megalith::tokenizer
