#include "megalith/observe/units.h"

#include <chrono>

namespace megalith::observe {

double seconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1e3;
}

// Inserts commas from the right; a sign is not a digit and gets none after it.
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  const size_t first = text.starts_with('-') ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

}  // namespace megalith::observe
