#include "megalith/observe/dashboard/access.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/observe/dashboard/dashboard.h"
#include "megalith/observe/dashboard/server.h"
#include "tests/observe/dashboard/run_folder.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;
using testing::expect_error;

TEST(DashboardAccess, OnlyItsOwnNamesOnLoopback) {
  for (const char* good : {"127.0.0.1", "127.0.0.1:80", "localhost:4000", "LOCALHOST", "[::1]:80", "127.0.1.1:1"})
    EXPECT_TRUE(is_own_host("127.0.0.1", good)) << good;
  for (const char* bad :
       {"", "evil.example", "evil.example:80", "localhost.evil.example", "127.evil.example", "[fe80::1]:80", "["})
    EXPECT_FALSE(is_own_host("127.0.0.1", bad)) << bad;
  EXPECT_TRUE(is_own_host("0.0.0.0", "node17:8080")) << "there a token is needed instead";
}

TEST(DashboardAccess, SecretsAreComparedWhole) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  for (const char* wrong : {"", "ab", "abd", "abcabc", "abcd", "xbc"}) EXPECT_FALSE(same_secret(wrong, "abc")) << wrong;
  EXPECT_FALSE(same_secret("", "")) << "no secret is not a secret that everybody knows";
}

TEST(DashboardAccess, TokensComeInThreeWays) {
  const std::string token = "0123456789abcdef";
  HttpRequest request{.method = "GET", .path = "/", .query = ""};
  EXPECT_TRUE(has_token(request, "megalith_1", ""));
  EXPECT_FALSE(has_token(request, "megalith_1", token));
  request.query = "token=" + token;
  EXPECT_TRUE(has_token(request, "megalith_1", token));
  request.query = "token=0123456789abcdeF";
  EXPECT_FALSE(has_token(request, "megalith_1", token));
  request.headers = {{"authorization", "Bearer " + token}};
  EXPECT_TRUE(has_token(request, "megalith_1", token));
  request.headers = {{"cookie", "megalith_1=" + token}};
  EXPECT_TRUE(has_token(request, "megalith_1", token));
  EXPECT_FALSE(has_token(request, "megalith_2", token)) << "another dashboard's cookie";
  check_token(token);
  for (const char* bad : {"short", "0123456789abcde;", "0123456789abcde\r\n", "0123456789 abcdef"})
    expect_error<ConfigError>([&] { check_token(bad); }, {"--token", "16"});
}

TEST(DashboardAccess, OnlyTheOwnPageIsOfTheSameOrigin) {
  const auto from = [](const std::string& origin) {
    HttpRequest request{.method = "POST", .path = "/", .query = ""};
    request.headers = {{"host", "localhost:80"}, {"origin", origin}};
    return is_same_origin(request);
  };
  EXPECT_TRUE(from("http://localhost:80"));
  for (const char* other : {"", "null", "http://localhost", "http://evil.example", "https://localhost:80"})
    EXPECT_FALSE(from(other)) << other;
}

TEST(DashboardAccess, OtherAddressesGetATokenAndANameThatCanBeOpened) {
  const RunFolder folder;
  const std::vector<std::filesystem::path> folders{folder.path()};
  Dashboard dashboard(folders);
  const std::string local = DashboardServer(dashboard, {}).url();
  EXPECT_TRUE(local.starts_with("http://127.0.0.1:"));
  EXPECT_EQ(local.find("token"), std::string::npos);
  const std::string first = DashboardServer(dashboard, {.host = "0.0.0.0"}).url();
  const std::string second = DashboardServer(dashboard, {.host = "0.0.0.0"}).url();
  EXPECT_EQ(first.find("0.0.0.0"), std::string::npos) << first;
  EXPECT_EQ(first.substr(first.find("?token=") + 7).size(), 32U) << first;
  EXPECT_NE(first.substr(first.find('?')), second.substr(second.find('?')));
  expect_contains(DashboardServer(dashboard, {.token = "0123456789abcdef"}).url(), "/?token=0123456789abcdef");
}

}  // namespace
}  // namespace megalith::observe
