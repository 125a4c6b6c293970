#include "bench/options.h"

#include <stdexcept>

namespace megalith::bench {

void read_options(int argc, char** argv, const std::map<std::string, OptionTarget>& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const auto found = options.find(name);
    if (found == options.end()) throw std::invalid_argument("unknown option " + name);
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    if (auto* const* text = std::get_if<std::string*>(&found->second))
      **text = argv[i + 1];
    else
      *std::get<int*>(found->second) = std::stoi(argv[i + 1]);
  }
}

}  // namespace megalith::bench
