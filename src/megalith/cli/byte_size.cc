#include "megalith/cli/byte_size.h"

#include <string_view>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::cli {

uint64_t parse_byte_size(const std::string& option, const std::string& text) {
  // Longer names first: "kib" also ends with "b".
  static const std::pair<const char*, double> kUnits[] = {
      {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"b", 1}};
  std::string number = to_lower(text);
  double unit = 1;
  for (const auto& [name, bytes] : kUnits) {
    if (!number.ends_with(name)) continue;
    number.resize(number.size() - std::string_view(name).size());
    unit = bytes;
    break;
  }
  const auto value = parse_double(std::string(trim(number)));
  check<ConfigError>(value && *value > 0 && *value * unit >= 1 && *value * unit < 1e18,
                     "{} is \"{}\"; it must be a size such as 5GB, 500MB or a number of bytes", option, text);
  return static_cast<uint64_t>(*value * unit);
}

}  // namespace megalith::cli
