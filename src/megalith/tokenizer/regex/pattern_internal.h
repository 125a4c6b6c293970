// What a Split or a Replace looks for: a text, a regular expression or characters of a kind; and how pieces are cut at
// it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "megalith/tokenizer/regex/regex_internal.h"
#include "megalith/tokenizer/text/pieces_internal.h"

namespace megalith::tokenizer {

class Pattern {
 public:
  using Predicate = bool (*)(char32_t);

  static Pattern literal(std::string text) { return Pattern(std::move(text)); }
  static Pattern regex(Regex regex) { return Pattern(std::move(regex)); }
  // Every character for which the predicate holds is a match of its own.
  static Pattern characters(Predicate predicate) { return Pattern(predicate); }

  // Matches from left to right, in one text after another. For one thread; the Pattern outlives it.
  class Search {
   public:
    // `whole`: what the texts are parts of.
    Search(const Pattern& pattern, std::string_view whole);
    void start(std::string_view text);
    std::optional<std::pair<size_t, size_t>> next();

   private:
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

// What becomes of the matches, as tokenizers' SplitDelimiterBehavior.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Cuts every piece at the matches of `pattern`; with `invert` at what is no match.
void split_pieces(Pieces& pieces, const Pattern& pattern, SplitBehavior behavior, bool invert = false);

// The text with `content` in place of every match.
std::string replace_matches(std::string_view text, const Pattern& pattern, std::string_view content);

}  // namespace megalith::tokenizer
