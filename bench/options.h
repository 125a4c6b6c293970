// The words of a benchmark: --name value, any number of times.
#pragma once

#include <map>
#include <string>
#include <variant>

namespace megalith::bench {

// Sets what is named. Throws std::invalid_argument for a name that nobody knows, or without a value.
using OptionTarget = std::variant<std::string*, int*>;
void read_options(int argc, char** argv, const std::map<std::string, OptionTarget>& options);

}  // namespace megalith::bench
