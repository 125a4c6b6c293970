// post_http: sends a JSON text to an address and waits a little for the answer. Plain HTTP is spoken here; https is
// left to the program curl (https_program.h), which has the certificates of the machine and keeps up with the protocol.
#pragma once

#include <chrono>
#include <string>

namespace megalith::observe {

// An address in its parts.
struct HttpUrl {
  std::string host;
  int port = 80;
  std::string target = "/";  // path and query
  bool secure = false;       // https

  // Parses "http://host[:port][/path]" and the same with https. Throws ConfigError for anything else, and for https on
  // a machine without curl.
  static HttpUrl parse(const std::string& text);
  std::string text() const;
};

// Sends a POST with `body` as application/json. Returns "" when the answer's status is 2xx and the reason for the
// failure otherwise. Never throws; waits for `patience` at most, names included only as far as the resolver does.
std::string post_http(const HttpUrl& url, const std::string& body,
                      std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace megalith::observe
