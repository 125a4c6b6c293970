// DashboardServer: serves a Dashboard on a port.
#pragma once

#include <memory>
#include <string>

#include "megalith/observe/dashboard/dashboard.h"
#include "megalith/observe/http/http_server.h"

namespace megalith::observe {

// The address to listen on, and who may look.
struct ServerAddress {
  std::string host = "127.0.0.1";  // the default admits this machine only
  int port = 0;                    // 0 picks a free port
  std::string token{};             // needed to see anything; "" means none on loopback and a random one elsewhere
};

// Answers GET and HEAD, and POST where the dashboard takes notes. On a loopback address, a request with another Host is
// refused: a foreign page whose name was made to resolve to this machine must not read runs. On any other address a
// token is needed: it is part of url(), and a cookie after the first visit. There is no TLS.
class DashboardServer {
 public:
  // Starts to listen; run() answers. `dashboard` outlives it. Throws ConfigError when the address is not available or
  // the token is too simple.
  DashboardServer(Dashboard& dashboard, const ServerAddress& address);

  int port() const { return server_.port(); }
  // Returns the address to open: "http://127.0.0.1:41234/", "http://node7:41234/?token=…". A server on all addresses
  // of the machine ("0.0.0.0", which is nobody's address) gives the machine's name.
  std::string url() const;

  // run() returns after stop(), which any thread may call, also before.
  void run() { server_.run(); }
  void stop() { server_.stop(); }

 private:
  HttpResponse answer(const HttpRequest& request);
  HttpResponse answer_allowed(const HttpRequest& request);
  std::string cookie_name() const;

  Dashboard& dashboard_;
  ServerAddress address_;
  HttpServer server_;
};

}  // namespace megalith::observe
