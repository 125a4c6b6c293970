// HttpServer: answers HTTP requests on a port, one at a time, and cannot be held up by clients that never finish one.
//
//   HttpServer server({.host = "127.0.0.1"}, [](const HttpRequest& request) { return HttpResponse{.body = "hello"}; });
//   fmt::print("port {}\n", server.port());
//   server.run();
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megalith/observe/http/http_request.h"

namespace megalith::observe {

// An answer. Its length and "Connection: close" are added.
struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body{};
  std::vector<std::pair<std::string, std::string>> headers{};
};

// One thread waits for all connections with poll(2); bytes are collected until a request is complete, and only then
// the handler runs. So a half-sent request costs a descriptor and a few bytes, never a thread, and is dropped when its
// time is over. A connection carries one request.
class HttpServer {
 public:
  struct Settings {
    std::string host = "127.0.0.1";  // a name or an address of this machine
    int port = 0;                    // 0 picks a free port
    HttpRequestLimits request{};
    // An address beyond its limit loses its oldest connection whose request is not complete; so does, at the limit of
    // all, the address with the most connections.
    size_t connections = 512, connections_per_address = 64;
    std::chrono::milliseconds request_time{5000};  // from the connection until the request is complete
    std::chrono::milliseconds answer_time{30000};  // for a client that reads slowly
  };
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // Starts to listen; run() answers. Throws ConfigError when the address is not available.
  HttpServer(Settings settings, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;  // the one given, or the one that was picked for 0

  // Answers until stop(), which any thread may call, also before run(). An exception of the handler becomes a 500.
  void run();
  void stop();

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace megalith::observe
