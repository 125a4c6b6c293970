// Splitting and searching of texts, shared by methods and filters. All of them follow Python's str: positions and
// widths count characters, and an empty pattern occurs between all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::tokenizer::jinja {

// str.split and str.rsplit: at whitespace without a separator, which must not be empty. `limit` < 0 means no limit.
std::vector<std::string> split_text(std::string_view text, std::optional<std::string_view> separator, int64_t limit,
                                    bool from_right);

// str.replace; `limit` < 0 replaces all.
std::string replaced(std::string_view text, std::string_view old, std::string_view with, int64_t limit);

// Counts non-overlapping occurrences of `part`.
size_t occurrences(std::string_view text, std::string_view part);

// Pads the text with `fill` to `width` characters. kLeft aligns the text to the left, so the filling is on its right.
enum class Alignment { kLeft, kRight, kCenter };
std::string padded(std::string_view text, int64_t width, std::string_view fill, Alignment alignment);

}  // namespace megalith::tokenizer::jinja
