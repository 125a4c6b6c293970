#include "megalith/observe/http/http_request.h"

#include <gtest/gtest.h>

namespace megalith::observe {
namespace {

TEST(HttpRequest, IsCompleteWithItsLastByte) {
  const std::string text =
      "POST /api/runs/0/notes?token=abc&x=1 HTTP/1.1\r\nHost: localhost:80\r\nCookie: a=1; megalith_80=secret\r\n"
      "Content-Length: 5\r\n\r\nhello";
  for (size_t bytes = 0; bytes < text.size(); ++bytes) EXPECT_EQ(parse_http(text.substr(0, bytes)).status, 0) << bytes;
  const HttpParse parse = parse_http(text);
  ASSERT_EQ(parse.status, 200);
  EXPECT_EQ(parse.request.method, "POST");
  EXPECT_EQ(parse.request.path, "/api/runs/0/notes");
  EXPECT_EQ(parse.request.parameter("token"), "abc");
  EXPECT_EQ(parse.request.parameter("tok"), "");
  EXPECT_EQ(parse.request.header("host"), "localhost:80");
  EXPECT_EQ(parse.request.cookie("megalith_80"), "secret");
  EXPECT_EQ(parse.request.body, "hello");
}

TEST(HttpRequest, NothingIsDecoded) {
  EXPECT_EQ(parse_http("GET /%2e%2e/x HTTP/1.1\r\nHost: h\r\n\r\n").request.path, "/%2e%2e/x");
}

TEST(HttpRequest, RefusesWithTheReason) {
  const auto status = [](const std::string& text) { return parse_http(text).status; };
  const std::string host = "Host: h\r\n";
  EXPECT_EQ(status("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n\r\n"), 400) << "no Host";
  EXPECT_EQ(status("GET x HTTP/1.1\r\n" + host + "\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + host + host + "\r\n"), 400) << "two hosts";
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + host + "a: b\r\n folded\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status(std::string("GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n", 29)), 400);
  EXPECT_EQ(status("GET / HTTP/2.0\r\n" + host + "\r\n"), 505);
  EXPECT_EQ(status("POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n"), 501);
  EXPECT_EQ(status("GET /" + std::string(3000, 'x') + " HTTP/1.1\r\n" + host + "\r\n"), 414);
  EXPECT_EQ(status("GET /" + std::string(3000, 'x')), 414);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nX: " + std::string(20000, 'x')), 431);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + host + "X: " + std::string(20000, 'x') + "\r\n\r\n"), 431);
  for (const char* bytes : {"65537", "100000000000000", "99999999999999999999999999"})
    EXPECT_EQ(status("POST / HTTP/1.1\r\n" + host + "Content-Length: " + bytes + "\r\n\r\n"), 413)
        << bytes << " bytes are refused before any of them comes";
  EXPECT_EQ(status("POST / HTTP/1.1\r\n" + host + "Content-Length: 65536\r\n\r\n"), 0);
}

}  // namespace
}  // namespace megalith::observe
