// Characters added by Unicode 15.0 to 16.0.
//
// tokenizers knows them, but the PCRE2 and utf8proc of a distribution may be older, and would then cut a text with such
// a character differently. So their categories are kept here.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megalith::tokenizer {

// A range of characters of one category.
struct NewerCharacters {
  char32_t first, last;
  std::string_view category;  // "Lo"
};

// Returns all ranges in ascending order.
std::span<const NewerCharacters> newer_characters();

// Returns the category of one of them; empty for all other characters.
std::string_view newer_category(char32_t c);

// Returns whether a text contains any of them. Requires valid UTF-8.
// Nearly free for texts in common scripts: most characters fail a test of one bit.
bool has_newer_characters(std::string_view text);

// Returns those of a category, or of all categories that start with a letter, as items of a PCRE2 class.
std::string newer_items(std::string_view category);

}  // namespace megalith::tokenizer
