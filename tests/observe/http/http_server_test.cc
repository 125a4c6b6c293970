// The server against clients that misbehave, and the client against servers that do.
#include "megalith/observe/http/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/observe/http/http_client.h"
#include "megalith/observe/http/https_program.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::observe {
namespace {

using std::chrono::milliseconds;
using testing::expect_contains;
using testing::expect_error;

class RunningServer {
 public:
  explicit RunningServer(HttpServer::Settings settings = {}, HttpServer::Handler handler = {})
      : server_(
            std::move(settings), handler ? std::move(handler) : [](const HttpRequest& request) {
              return HttpResponse{.type = "text/plain",
                                  .body = request.method + " " + request.path + " " + request.body};
            }) {
    thread_ = std::thread([this] { server_.run(); });
  }
  ~RunningServer() {
    server_.stop();
    thread_.join();
  }
  int port() const { return server_.port(); }

 private:
  HttpServer server_;
  std::thread thread_;
};

// A connection to a port of this machine that sends what it is told.
class Client {
 public:
  // `from` is the last number of the client's own address, 127.0.0.from.
  explicit Client(int port, uint32_t from = 1) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + from);
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    const timeval patience{10, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  Client(Client&& other) noexcept : socket_(std::exchange(other.socket_, -1)), connected_(other.connected_) {}
  ~Client() {
    if (socket_ >= 0) ::close(socket_);
  }
  void send(const std::string& text) const {
    EXPECT_TRUE(connected_);
    EXPECT_EQ(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Everything until the server closes.
  std::string answer() const {
    std::string text;
    char bytes[4096];
    for (ssize_t got = 0; (got = ::recv(socket_, bytes, sizeof bytes, 0)) > 0;)
      text.append(bytes, static_cast<size_t>(got));
    return text;
  }

 private:
  int socket_;
  bool connected_ = false;
};

std::string ask(int port, const std::string& request) {
  const Client client(port);
  client.send(request);
  return client.answer();
}

const std::string kGet = "GET /x HTTP/1.1\r\nHost: h\r\n\r\n";

TEST(HttpServer, AnswersOneRequestPerConnection) {
  const RunningServer server;
  const std::string answer = ask(server.port(), kGet);
  expect_contains(answer, "HTTP/1.1 200 OK\r\n");
  expect_contains(answer, "Content-Length: 7\r\n");
  expect_contains(answer, "\r\n\r\nGET /x ");
  const std::string head = ask(server.port(), "HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n");
  expect_contains(head, "Content-Length: 8\r\n");
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
}

TEST(HttpServer, ThreeHundredHalfSentRequestsDoNotBlockIt) {
  const RunningServer server;
  std::vector<Client> half;
  for (int i = 0; i < 300; ++i) {
    half.emplace_back(server.port());
    half.back().send("GET / HTTP/1.1\r\nHost: ");
  }
  const auto begin = std::chrono::steady_clock::now();
  expect_contains(ask(server.port(), kGet), "HTTP/1.1 200");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST(HttpServer, HalfSentRequestsEndWithTheirTime) {
  const RunningServer server({.request_time = milliseconds(200)});
  const Client slow(server.port());
  slow.send("GET / HTTP/1.1\r\n");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(slow.answer(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(HttpServer, AnAddressLosesItsOldestConnections) {
  const RunningServer server({.connections_per_address = 4});
  std::vector<Client> half;
  for (int i = 0; i < 8; ++i) {
    half.emplace_back(server.port());
    half.back().send("GET /x HTTP/1.1\r\n");
  }
  expect_contains(ask(server.port(), kGet), "HTTP/1.1 200");
  EXPECT_EQ(half.front().answer(), "");
  half.back().send("Host: h\r\n\r\n");
  expect_contains(half.back().answer(), "HTTP/1.1 200");
}

// At the limit of all connections, even one whose answer is being sent makes room for the next.
TEST(HttpServer, AllAddressesTogetherHaveALimit) {
  const std::string text(64 << 20, 'x');
  const RunningServer server({.connections = 2}, [&](const HttpRequest& request) {
    return HttpResponse{.body = request.path == "/x" ? text : "small"};
  });
  std::vector<Client> slow;
  for (const uint32_t from : {1, 2}) {
    slow.emplace_back(server.port(), from);
    slow.back().send(kGet);
  }
  std::this_thread::sleep_for(milliseconds(200));
  const Client third(server.port(), 3);
  third.send("GET /y HTTP/1.1\r\nHost: h\r\n\r\n");
  expect_contains(third.answer(), "small");
  EXPECT_LT(slow.front().answer().size(), text.size());
  EXPECT_GT(slow.back().answer().size(), text.size());
}

TEST(HttpServer, APromiseOfManyBytesIsRefusedAtOnce) {
  const RunningServer server;
  const auto begin = std::chrono::steady_clock::now();
  expect_contains(ask(server.port(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000000000\r\n\r\nx"),
                  "HTTP/1.1 413");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
}

TEST(HttpServer, ALongAnswerReachesASlowReader) {
  const std::string text(8 << 20, 'x');
  const RunningServer server({}, [&](const HttpRequest&) { return HttpResponse{.body = text}; });
  const Client slow(server.port());
  slow.send(kGet);
  std::this_thread::sleep_for(milliseconds(100));
  expect_contains(ask(server.port(), kGet), "HTTP/1.1 200");
  EXPECT_GT(slow.answer().size(), text.size());
}

TEST(HttpServer, AHandlerThatThrowsIsAnError) {
  const RunningServer server({}, [](const HttpRequest&) -> HttpResponse { throw DataError("secret"); });
  const std::string answer = ask(server.port(), kGet);
  expect_contains(answer, "HTTP/1.1 500");
  EXPECT_EQ(answer.find("secret"), std::string::npos);
}

TEST(HttpServer, StopsBeforeItRuns) {
  HttpServer server({}, [](const HttpRequest&) { return HttpResponse{}; });
  server.stop();
  server.run();
}

TEST(HttpClient, Urls) {
  const HttpUrl url = HttpUrl::parse("http://host:8080/a/b?c");
  EXPECT_EQ(url.host, "host");
  EXPECT_EQ(url.port, 8080);
  EXPECT_EQ(url.target, "/a/b?c");
  EXPECT_EQ(HttpUrl::parse("http://host").target, "/");
  for (const char* bad : {"ftp://host/", "host", "http://", "https://", "http://:80", "http://h:0", "http://h:x",
                          "http://u@h/", "http://h/\r\nX: y", "http://[::1]/", "https://h/\"x"})
    expect_error<ConfigError>([&] { HttpUrl::parse(bad); }, {"http://HOST", "https://"});
}

// Replaces PATH by one folder, with a program named curl that does what the script says; empty for none.
class PathWithCurl {
 public:
  explicit PathWithCurl(const std::string& script) : before_(std::getenv("PATH")) {
    if (!script.empty()) {
      std::ofstream(folder_ / "curl") << "#!/bin/sh\n" << script;
      std::filesystem::permissions(folder_ / "curl", std::filesystem::perms::owner_all);
    }
    ::setenv("PATH", folder_.path().c_str(), 1);
  }
  ~PathWithCurl() { ::setenv("PATH", before_.c_str(), 1); }
  std::string text_in(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  testing::TempFolder folder_;
  std::string before_;
};

TEST(HttpClient, CurlSpeaksHttps) {
  const PathWithCurl path(
      "echo \"$@\" > \"$(/usr/bin/dirname \"$0\")/words\"; /bin/cat > \"$(/usr/bin/dirname \"$0\")/input\"\n");
  const HttpUrl url = HttpUrl::parse("https://chat.example/hook/secret");
  EXPECT_EQ(url.port, 443);
  EXPECT_EQ(post_http(url, R"({"text":"a \"b\" \\n"})"), "");
  // The secret is not among the words, which everybody on the machine can see.
  EXPECT_EQ(path.text_in("words"), "--disable --config -\n");
  const std::string input = path.text_in("input");
  expect_contains(input, "url = \"https://chat.example:443/hook/secret\"\n");
  expect_contains(input, R"(data-raw = "{\"text\":\"a \\\"b\\\" \\\\n\"}")");
  expect_contains(input, "\nfail\n");
}

TEST(HttpClient, WhatCurlSaysIsTheReason) {
  const PathWithCurl path("echo 'curl: (22) The requested URL returned error: 404' >&2; echo more >&2; exit 22\n");
  EXPECT_EQ(post_http(HttpUrl::parse("https://h/"), "{}"), "curl: (22) The requested URL returned error: 404");
}

TEST(HttpClient, WithoutCurlHttpsIsRefusedByName) {
  const PathWithCurl path("");
  EXPECT_FALSE(has_https_program());
  expect_error<ConfigError>([] { HttpUrl::parse("https://h/"); }, {"https://h/", "curl", "apt-get install", "relay"});
  EXPECT_EQ(HttpUrl::parse("http://h/").host, "h");
}

TEST(HttpClient, SaysWhyItFailed) {
  {
    const RunningServer server({}, [](const HttpRequest& request) {
      return HttpResponse{.status = request.body == "{}" && request.path == "/good" ? 204 : 404};
    });
    EXPECT_EQ(post_http({"127.0.0.1", server.port(), "/good"}, "{}"), "");
    expect_contains(post_http({"127.0.0.1", server.port(), "/bad"}, "{}"), "404");
  }
  expect_contains(post_http({"127.0.0.1", 1, "/"}, "{}"), "cannot connect to 127.0.0.1:1");
  expect_contains(post_http({"no.such.host.invalid", 80, "/"}, "{}"), "no.such.host.invalid");
}

}  // namespace
}  // namespace megalith::observe
