#include "megalith/observe/dashboard/access.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::observe {

namespace {

// Returns the name in a Host header: "[::1]:8080" gives "::1", "Localhost:1" gives "localhost".
std::string name_in(std::string_view header) {
  if (header.starts_with('[')) return std::string(header.substr(1, header.find(']') - 1));
  return to_lower(std::string(header.substr(0, header.find(':'))));
}

}  // namespace

// "127.evil.example" consists of more than digits and dots, and is not.
bool is_loopback(const std::string& host) {
  const bool address = std::ranges::all_of(host, [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
  return to_lower(host) == "localhost" || host == "::1" || (address && host.starts_with("127."));
}

bool is_own_host(const std::string& host, std::string_view host_header) {
  return !is_loopback(host) || is_loopback(name_in(host_header));
}

// Every character of `given` is compared, whatever the ones before it were; a wrong length only adds to the difference.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() && !secret.empty() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret.empty() ? '\0' : secret[i % secret.size()]);
  return difference == 0;
}

void check_token(const std::string& token) {
  constexpr size_t kLeastCharacters = 16, kMostCharacters = 256;
  const bool plain = std::ranges::all_of(token, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
  check<ConfigError>(plain && token.size() >= kLeastCharacters && token.size() <= kMostCharacters,
                     "--token must have {} to {} characters, all of them letters, digits, '-' or '_'; without --token "
                     "one is made",
                     kLeastCharacters, kMostCharacters);
}

bool has_token(const HttpRequest& request, const std::string& cookie_name, std::string_view token) {
  if (token.empty()) return true;
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view authorization = request.header("authorization");
  return same_secret(request.cookie(cookie_name), token) || same_secret(request.parameter("token"), token) ||
         (authorization.starts_with(kBearer) && same_secret(authorization.substr(kBearer.size()), token));
}

bool is_same_origin(const HttpRequest& request) {
  return request.header("origin") == "http://" + std::string(request.header("host"));
}

}  // namespace megalith::observe
