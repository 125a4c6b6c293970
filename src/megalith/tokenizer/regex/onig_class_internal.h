// Oniguruma's sets of characters, written as PCRE2 classes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

// The contents of a PCRE2 bracket class, and whether the set is its complement.
struct CharacterItems {
  std::string items;
  bool negated = false;
};

// Whether sets include characters that PCRE2 may not know yet (newer_characters_internal.h). Only a text with such
// characters needs them, and matching without them is faster.
enum class Coverage { kAsPcre2, kWithNewer };

// Returns the set of \s \S \d \D \w \W \h \H; std::nullopt for other letters. The sets are Oniguruma's, which differ
// from PCRE2's: \s is the property White_Space, \w includes marks and connecting punctuation, \h is the hexadecimal
// digits.
std::optional<CharacterItems> class_of_escape(char letter, Coverage coverage);

// Returns the set of \p{name} or [:name:]. Case, spaces, hyphens and underscores do not matter. A name that is neither
// a category nor a property is taken as a script; PCRE2 reports it if it is not one.
CharacterItems class_of_property(std::string_view name, Coverage coverage);

// A bracket class: the union of `items` and `nested`, or its complement; `also` are the sets that it is intersected
// with before the complement is taken.
struct CharacterSetNode {
  std::string items;
  std::vector<CharacterSetNode> nested;
  std::vector<CharacterSetNode> also;
  bool negated = false;

  // Adds a set to the union.
  void add(const CharacterItems& set);
};

// Returns a PCRE2 expression that matches one character of the set.
std::string pcre2_class(const CharacterSetNode& node);

}  // namespace megalith::tokenizer
