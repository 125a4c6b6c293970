// HttpRequest: a request of HTTP/1.1 as bytes of a connection turn into it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::observe {

// One request. Path and query are as sent: nothing is decoded, so that "%2e%2e" stays a name that nothing has.
struct HttpRequest {
  std::string method;                                          // "GET"
  std::string path;                                            // "/api/runs", always with the slash
  std::string query;                                           // text after "?", without it
  std::vector<std::pair<std::string, std::string>> headers{};  // names in lower case, values without blanks around
  std::string body{};

  // Returns the value of the first header of this (lower-case) name, or "".
  std::string_view header(std::string_view name) const;
  // Returns the value of a cookie, or "".
  std::string_view cookie(std::string_view name) const;
  // Returns the value of a parameter of the query, or "".
  std::string_view parameter(std::string_view name) const;
};

// Sizes beyond which a request is refused rather than read.
struct HttpRequestLimits {
  size_t target_bytes = 2048;  // path and query
  size_t head_bytes = 16384;   // first line and headers
  size_t body_bytes = 65536;
};

// The meaning of the bytes so far. `status` is 0 while more bytes are needed, 200 when `request` is complete, and the
// status of the refusal otherwise: 400, 413 (a body of more bytes, however many were promised), 414, 431, 501 or 505.
struct HttpParse {
  int status = 0;
  HttpRequest request{};
};

// Parses the bytes that a connection has sent. Strict: one request, with at most one Host and one Content-Length, and
// no transfer coding; ambiguity is how one server is made to see another request than the next.
HttpParse parse_http(std::string_view bytes, const HttpRequestLimits& limits = {});

}  // namespace megalith::observe
