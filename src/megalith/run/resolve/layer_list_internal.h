// Options that choose layers: a number n for every n-th layer, or a list with an entry for each layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::run {

// Returns n if the text is a number; std::nullopt if it is a list. Throws ConfigError, naming the option, for 0 and for
// numbers beyond any model.
std::optional<int64_t> layer_step(std::string_view option, const std::string& text);

// Reads a list such as ([1]*3+[0]*2). Throws ConfigError, naming the option, for any other text and for a list of the
// wrong length.
std::vector<bool> parse_layer_list(std::string_view option, const std::string& text, int64_t layers);

}  // namespace megalith::run
