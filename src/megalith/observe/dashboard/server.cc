// Decides who is answered; the answers are Dashboard's. The order of the checks is that of what a stranger may learn:
// a foreign Host nothing, a visitor without the token that there is one, a page of another site nothing but a refusal.
#include "megalith/observe/dashboard/server.h"

#include <unistd.h>

#include <array>

#include "megalith/base/error.h"
#include "megalith/observe/dashboard/access.h"
#include "megalith/observe/dashboard/page.h"

namespace megalith::observe {

namespace {

HttpResponse refusal(int status, const char* reason) {
  return {status, "application/json", fmt::format(R"({{"error":"{}"}})", reason), {}};
}

// The token is made before the server listens.
ServerAddress with_token(ServerAddress address) {
  if (!address.token.empty()) check_token(address.token);
  if (address.token.empty() && !is_loopback(address.host)) address.token = random_nonce();
  return address;
}

std::string machine_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

}  // namespace

DashboardServer::DashboardServer(Dashboard& dashboard, const ServerAddress& address)
    : dashboard_(dashboard),
      address_(with_token(address)),
      server_({.host = address.host, .port = address.port},
              [this](const HttpRequest& request) { return answer(request); }) {}

std::string DashboardServer::url() const {
  std::string host = address_.host;
  if (host == "0.0.0.0" || host == "::") host = machine_name();
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  const std::string query = address_.token.empty() ? "" : "?token=" + address_.token;
  return fmt::format("http://{}:{}/{}", host, port(), query);
}

// Cookies do not tell ports apart, so the name does: two dashboards on one machine have two tokens.
std::string DashboardServer::cookie_name() const { return fmt::format("megalith_{}", port()); }

// Sets the headers that keep the page and its data from other sites.
HttpResponse DashboardServer::answer(const HttpRequest& request) {
  HttpResponse response = answer_allowed(request);
  for (const auto& [name, value] : {std::pair{"X-Content-Type-Options", "nosniff"},
                                    {"Referrer-Policy", "no-referrer"},
                                    {"Cache-Control", "no-store"},
                                    {"Cross-Origin-Resource-Policy", "same-origin"}})
    response.headers.emplace_back(name, value);
  return response;
}

HttpResponse DashboardServer::answer_allowed(const HttpRequest& request) {
  if (!is_own_host(address_.host, request.header("host"))) return refusal(403, "this server has another name");
  if (!has_token(request, cookie_name(), address_.token))
    return refusal(401, "a token is needed: open the address that megalith dashboard has printed");
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (reads && !request.parameter("token").empty() && request.path == "/") {
    // The token leaves the address bar, and with it the history; the cookie carries it from now on.
    HttpResponse response{303, "text/plain", "", {{"Location", "/"}}};
    response.headers.emplace_back(
        "Set-Cookie", fmt::format("{}={}; Path=/; HttpOnly; SameSite=Lax", cookie_name(), request.parameter("token")));
    return response;
  }
  if (!reads && request.method != "POST") return refusal(405, "this method is not known here");
  if (!reads && !is_same_origin(request)) return refusal(403, "only the dashboard's own page may write");
  const DashboardAnswer page = reads ? dashboard_.answer(request.path)
                                     : dashboard_.post(request.path, request.body, request.header("x-megalith-write"));
  return {page.status, page.type, page.body, {{"Content-Security-Policy", content_security_policy(page.nonce)}}};
}

}  // namespace megalith::observe
