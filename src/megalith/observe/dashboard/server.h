// DashboardServer: a Dashboard on a port, by cpp-httplib.
#pragma once

#include <memory>
#include <string>

#include "megalith/observe/dashboard/dashboard.h"

namespace megalith::observe {

struct ServerAddress {
  std::string host = "127.0.0.1";  // other machines can look only when this says so
  int port = 0;                    // 0: any that is free
};

// Answers GET and HEAD. On a loopback address a request whose Host is another one is refused: a page of somebody else
// that a browser was led to resolve to this machine must not read runs.
class DashboardServer {
 public:
  // Listens from now on; run() answers. `dashboard` outlives it. Throws ConfigError when the address cannot be had, or
  // when this program was built without cpp-httplib.
  DashboardServer(Dashboard& dashboard, const ServerAddress& address);
  ~DashboardServer();
  DashboardServer(const DashboardServer&) = delete;
  DashboardServer& operator=(const DashboardServer&) = delete;

  int port() const;
  std::string url() const;  // "http://127.0.0.1:41234/"

  // Returns after stop(), which any thread may call.
  void run();
  void stop();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Whether a request with this Host header may be answered by a server on `host`: "127.0.0.1", "localhost:8080", …
bool is_own_host(const std::string& host, const std::string& host_header);

}  // namespace megalith::observe
