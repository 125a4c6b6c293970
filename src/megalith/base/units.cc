#include "megalith/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>

namespace megalith {

// The next unit begins at 1023.95, which would otherwise print as "1024.0".
std::string bytes_text(double bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  size_t unit = 0;
  for (bytes /= 1024; bytes >= 1023.95 && unit + 1 < kUnits.size(); bytes /= 1024) ++unit;
  return fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

// Like bytes_text, it changes the unit where rounding would print "1000" or "1000.0k". The negated comparison also
// takes NaN, which prints as "nan".
std::string rate_text(double per_second) {
  if (!(per_second >= 999.5)) return fmt::format("{:.0f}", per_second);
  if (per_second < 999'950) return fmt::format("{:.1f}k", per_second / 1e3);
  return fmt::format("{:.2f}M", per_second / 1e6);
}

std::string duration_text(double seconds) {
  constexpr double kLongest = 3.2e9;  // a century
  if (!(seconds >= 0 && seconds < kLongest)) return "?";
  const auto total = static_cast<int64_t>(std::lround(seconds));
  const int64_t days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02d}:{:02d}:{:02d}", days, hours, minutes, total % 60);
  return fmt::format("{}:{:02d}:{:02d}", hours, minutes, total % 60);
}

}  // namespace megalith
