// post_http: sends a JSON text to an address and waits a little for the answer.
#pragma once

#include <chrono>
#include <string>

namespace megalith::observe {

// An address of plain HTTP, in its parts.
struct HttpUrl {
  std::string host;
  int port = 80;
  std::string target = "/";  // path and query

  // Parses "http://host[:port][/path]". Throws ConfigError for anything else: https:// needs a relay on this machine.
  static HttpUrl parse(const std::string& text);
};

// Sends a POST with `body` as application/json. Returns "" when the answer's status is 2xx and the reason for the
// failure otherwise. Never throws; waits for `patience` at most, names included only as far as the resolver does.
std::string post_http(const HttpUrl& url, const std::string& body,
                      std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace megalith::observe
