// DashboardServer: serves a Dashboard on a port, using cpp-httplib.
#pragma once

#include <memory>
#include <string>

#include "megalith/observe/dashboard/dashboard.h"

namespace megalith::observe {

// The address to listen on. Any other host than loopback shows the runs to everybody who can reach the machine.
struct ServerAddress {
  std::string host = "127.0.0.1";  // the default admits this machine only
  int port = 0;                    // 0 picks a free port
};

// Answers GET and HEAD. On a loopback address, a request with another Host is refused: a foreign page whose name was
// made to resolve to this machine (DNS rebinding) must not read runs. There is no TLS and no login: who can reach the
// port can see the runs, but never change anything.
class DashboardServer {
 public:
  // Starts to listen; run() answers. `dashboard` outlives it. Throws ConfigError when the address is not available, or
  // when the program was built without cpp-httplib.
  DashboardServer(Dashboard& dashboard, const ServerAddress& address);
  ~DashboardServer();
  DashboardServer(const DashboardServer&) = delete;
  DashboardServer& operator=(const DashboardServer&) = delete;

  // The port in use: the one given, or the one that was picked for 0.
  int port() const;
  std::string url() const;  // "http://127.0.0.1:41234/"

  // run() returns after stop(), which any thread may call.
  void run();
  void stop();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Returns whether a server on `host` may answer a request with this Host header: "127.0.0.1", "localhost:8080", …
bool is_own_host(const std::string& host, const std::string& host_header);

}  // namespace megalith::observe
