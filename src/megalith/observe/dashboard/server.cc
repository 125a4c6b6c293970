// cpp-httplib runs a thread per connection from its own pool; the handler only calls Dashboard::answer, which locks.
// There is one route, for GET and HEAD: paths are judged by Dashboard, and everything else about a request is ignored.
#include "megalith/observe/dashboard/server.h"

#include <httplib.h>

#include "megalith/base/error.h"
#include "megalith/observe/dashboard/page.h"

namespace megalith::observe {

struct DashboardServer::Parts {
  Dashboard& dashboard;
  ServerAddress address;
  httplib::Server server{};
};

namespace {

// Sets the headers that keep the page and its data from other sites, then lets the dashboard answer.
void answer(Dashboard& dashboard, const std::string& host, const httplib::Request& request,
            httplib::Response& response) {
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_header("Cache-Control", "no-store");
  response.set_header("Cross-Origin-Resource-Policy", "same-origin");
  if (!is_own_host(host, request.get_header_value("Host"))) {
    response.status = 403;
    return response.set_content("{\"error\":\"this server has another name\"}", "application/json");
  }
  const DashboardAnswer page = dashboard.answer(request.path);
  response.status = page.status;
  response.set_header("Content-Security-Policy", content_security_policy(page.nonce));
  response.set_content(page.body, page.type.c_str());
}

}  // namespace

DashboardServer::DashboardServer(Dashboard& dashboard, const ServerAddress& address)
    : parts_(new Parts{dashboard, address}) {
  httplib::Server& server = parts_->server;
  server.Get(".*", [parts = parts_.get()](const httplib::Request& request, httplib::Response& response) {
    answer(parts->dashboard, parts->address.host, request, response);
  });
  constexpr size_t kMostBodyBytes = 1024;  // requests have no bodies
  server.set_payload_max_length(kMostBodyBytes);
  // Seconds; pages ask every two, and an idle connection would otherwise hold a thread of the pool.
  server.set_keep_alive_timeout(2);
  // The library's own options would let two servers share a port.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  int& port = parts_->address.port;
  if (port == 0)
    port = server.bind_to_any_port(address.host);
  else if (!server.bind_to_port(address.host, port))
    port = -1;
  check<ConfigError>(port > 0,
                     "cannot listen on {} port {}: the address is not this machine's, or the port is taken. Choose "
                     "another --port (0 picks a free one) or another --host",
                     address.host, address.port);
}

DashboardServer::~DashboardServer() = default;

int DashboardServer::port() const { return parts_->address.port; }

std::string DashboardServer::url() const {
  const std::string& host = parts_->address.host;
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}/", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port());
}

void DashboardServer::run() { parts_->server.listen_after_bind(); }

void DashboardServer::stop() { parts_->server.stop(); }

}  // namespace megalith::observe
