#include <algorithm>

#include "megalith/base/text.h"
#include "megalith/observe/dashboard/server.h"

namespace megalith::observe {

namespace {

// Returns the name in a Host header: "[::1]:8080" gives "::1", "Localhost:1" gives "localhost".
std::string name_in(const std::string& header) {
  if (header.starts_with('[')) return header.substr(1, header.find(']') - 1);
  return to_lower(header.substr(0, header.find(':')));
}

bool is_loopback(const std::string& name) {
  const bool address = std::ranges::all_of(name, [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
  return name == "localhost" || name == "::1" || (address && name.starts_with("127."));
}

}  // namespace

bool is_own_host(const std::string& host, const std::string& host_header) {
  if (!is_loopback(to_lower(host))) return true;
  return is_loopback(name_in(host_header));
}

}  // namespace megalith::observe
