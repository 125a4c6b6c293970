// A web page from elsewhere can make a browser send requests to 127.0.0.1 under a host name of its own (DNS rebinding)
// and read the answers. A server that listens on loopback therefore answers only requests whose Host header names
// loopback; one that listens on a public address has opted for visitors by any name.
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

// "localhost", "::1" and 127.x.y.z; "127.evil.example" consists of more than digits and dots, and is not.
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
