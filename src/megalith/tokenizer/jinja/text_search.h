// Cutting and searching texts, shared by methods and filters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer::jinja {

// str.split and str.rsplit: at whitespace when there is no separator. `limit` < 0: no limit. A separator is not empty.
std::vector<std::string> split_text(std::string_view text, std::optional<std::string_view> separator, int64_t limit,
                                    bool from_right);

// str.replace; `limit` < 0: all.
std::string replaced(std::string_view text, std::string_view old, std::string_view with, int64_t limit);

// How often `part` stands in the text without overlap.
size_t occurrences(std::string_view text, std::string_view part);

// The text in the middle, on the left or on the right of `width` characters of `fill`.
enum class Alignment { kLeft, kRight, kCenter };
std::string padded(std::string_view text, int64_t width, std::string_view fill, Alignment alignment);

}  // namespace megalith::tokenizer::jinja
