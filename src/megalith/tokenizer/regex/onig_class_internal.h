// Sets of characters in Oniguruma's terms, written as PCRE2 classes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

// The inside of a PCRE2 bracket class, and whether the set is its complement.
struct CharacterItems {
  std::string items;
  bool negated = false;
};

// Whether sets get the characters that PCRE2 may not know yet (newer_characters_internal.h). Only a text that has such
// characters needs them, and matching without them is faster.
enum class Coverage { kAsPcre2, kWithNewer };

// \s \S \d \D \w \W \h \H; nothing for other letters. The sets are Oniguruma's, which differ from PCRE2's: \s is the
// property White_Space, \w has marks and connecting punctuation, \h are hexadecimal digits.
std::optional<CharacterItems> class_of_escape(char letter, Coverage coverage);

// \p{name}, [:name:]. Case, blanks, hyphens and underscores do not matter. A name that is no category and no property
// is taken for a script, and PCRE2 will say if it is none.
CharacterItems class_of_property(std::string_view name, Coverage coverage);

// A bracket class: the union of `items` and of `nested`, or its complement; `also` are sets that it is intersected with
// before the complement is taken.
struct CharacterSetNode {
  std::string items;
  std::vector<CharacterSetNode> nested;
  std::vector<CharacterSetNode> also;
  bool negated = false;

  void add(const CharacterItems& set);
};

// An expression of PCRE2 that matches one character of the set.
std::string pcre2_class(const CharacterSetNode& node);

}  // namespace megalith::tokenizer
