// Parses the words of a benchmark: --name value, any number of times.
#pragma once

#include <map>
#include <string>
#include <variant>

namespace megalith::bench {

// Sets the targets of the named options; the last occurrence of a name wins. Throws std::invalid_argument for an
// unknown name or a missing value, because a misspelled option would silently measure the default.
using OptionTarget = std::variant<std::string*, int*>;
void read_options(int argc, char** argv, const std::map<std::string, OptionTarget>& options);

}  // namespace megalith::bench
