// Access to the dashboard: the Host, token and origin that a request must have to see runs, or to write notes.
#pragma once

#include <string>
#include <string_view>

#include "megalith/observe/http/http_request.h"

namespace megalith::observe {

// Whether a server on `host` can be reached from this machine only: "localhost", "::1", 127.x.y.z.
bool is_loopback(const std::string& host);

// Returns whether a server on `host` may answer a request with this Host header: "127.0.0.1", "localhost:8080", …
// A web page from elsewhere can make a browser send requests to 127.0.0.1 under a host name of its own (DNS rebinding)
// and read the answers; so a server on loopback answers only to names of loopback. One on another address has a token.
bool is_own_host(const std::string& host, std::string_view host_header);

// Compares secrets in a time that depends only on the length of `given`.
bool same_secret(std::string_view given, std::string_view secret);

// Throws ConfigError unless `token` has at least 16 characters, all of them letters, digits, '-' or '_': it stands in
// an address and in a cookie.
void check_token(const std::string& token);

// Returns whether the request carries the token: as the cookie `cookie_name`, as `Authorization: Bearer TOKEN`, or as
// `?token=TOKEN`. Everybody does where there is no token.
bool has_token(const HttpRequest& request, const std::string& cookie_name, std::string_view token);

// Returns whether a request that changes something comes from this server's own page: its Origin is the address that
// it was sent to. Browsers set Origin on every POST, and no page can forge it.
bool is_same_origin(const HttpRequest& request);

}  // namespace megalith::observe
