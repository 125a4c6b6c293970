// Characters that Unicode got in its versions 15.0 to 16.0.
//
// tokenizers knows them; the PCRE2 and utf8proc of a distribution may be older, and then would cut a text with such a
// character elsewhere. So their categories are kept here.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megalith::tokenizer {

struct NewerCharacters {
  char32_t first, last;
  std::string_view category;  // "Lo"
};

// In ascending order.
std::span<const NewerCharacters> newer_characters();

// The category of one of them; empty for all other characters.
std::string_view newer_category(char32_t c);

// Whether a text has any of them. Requires valid UTF-8.
bool has_newer_characters(std::string_view text);

// Those of a category, or of all categories that start with a letter, as items of a PCRE2 class.
std::string newer_items(std::string_view category);

}  // namespace megalith::tokenizer
