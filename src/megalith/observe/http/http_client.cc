// A POST over a non-blocking socket. One deadline covers connecting, sending and the first line of the answer, which
// alone matters; the rest is not read.
#include "megalith/observe/http/http_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/observe/http/https_program.h"

namespace megalith::observe {

namespace {

using Moment = std::chrono::steady_clock::time_point;

// Waits until the socket is ready for `events`; false when the time is over.
bool wait_for(int socket, short events, Moment deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  pollfd waits{socket, events, 0};
  return left.count() > 0 && ::poll(&waits, 1, static_cast<int>(left.count())) == 1;
}

// Returns a connected, non-blocking socket, or -1.
int connect_to(const HttpUrl& url, Moment deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(url.host.c_str(), std::to_string(url.port).c_str(), &hints, &found) != 0) return -1;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const int socket = ::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    int error = ::connect(socket, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS && wait_for(socket, POLLOUT, deadline)) {
      socklen_t size = sizeof error;
      ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return socket;
    ::close(socket);
  }
  return -1;
}

bool send_all(int socket, const std::string& text, Moment deadline) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = ::send(socket, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (put > 0) done += static_cast<size_t>(put);
    if (put < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (put < 0 && !wait_for(socket, POLLOUT, deadline)) return false;
  }
  return true;
}

// Returns the first line of the answer, or what has come of it.
std::string first_line_of_answer(int socket, Moment deadline) {
  std::string text;
  std::array<char, 512> bytes;
  while (text.find('\n') == std::string::npos && text.size() < bytes.size() && wait_for(socket, POLLIN, deadline)) {
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got <= 0) break;
    text.append(bytes.data(), static_cast<size_t>(got));
  }
  return text.substr(0, text.find('\r'));
}

}  // namespace

HttpUrl HttpUrl::parse(const std::string& text) {
  constexpr std::string_view kPlain = "http://", kSecure = "https://";
  constexpr int64_t kMostPorts = 65535;
  const auto wrong = [&](bool good) {
    check<ConfigError>(good, "\"{}\" is not an address of the form http://HOST[:PORT][/PATH] or https://…", text);
  };
  HttpUrl url;
  url.secure = text.starts_with(kSecure);
  url.port = url.secure ? 443 : 80;
  wrong(url.secure || text.starts_with(kPlain));
  const std::string rest = text.substr((url.secure ? kSecure : kPlain).size());
  const size_t slash = rest.find('/');
  const std::string place = rest.substr(0, slash);
  if (slash != std::string::npos) url.target = rest.substr(slash);
  for (const unsigned char c : rest) wrong(c > ' ' && c < 0x7f && c != '@' && c != '#' && c != '"' && c != '\\');
  const size_t colon = place.rfind(':');
  url.host = place.substr(0, colon);
  if (colon != std::string::npos) {
    const auto port = parse_int(place.substr(colon + 1));
    wrong(port && *port > 0 && *port <= kMostPorts);
    url.port = static_cast<int>(*port);
  }
  wrong(!url.host.empty() && url.host.find(':') == std::string::npos);
  check<ConfigError>(!url.secure || has_https_program(),
                     "{} needs the program curl, which speaks https for Megalith, and there is none in PATH. Install it"
                     " (apt-get install curl), or give the http:// address of a relay on this machine",
                     text);
  return url;
}

std::string HttpUrl::text() const { return fmt::format("http{}://{}:{}{}", secure ? "s" : "", host, port, target); }

std::string post_http(const HttpUrl& url, const std::string& body, std::chrono::milliseconds patience) {
  if (url.secure) return post_https(url.text(), body, patience);
  const Moment deadline = std::chrono::steady_clock::now() + patience;
  const int socket = connect_to(url, deadline);
  if (socket < 0) return fmt::format("cannot connect to {}:{}", url.host, url.port);
  const std::string request = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      url.target, url.host, url.port, body.size(), body);
  std::string answer;
  const bool sent = send_all(socket, request, deadline);
  if (sent) answer = first_line_of_answer(socket, deadline);
  ::close(socket);
  if (answer.starts_with("HTTP/1.1 2") || answer.starts_with("HTTP/1.0 2")) return "";
  return answer.empty() ? fmt::format("{}:{} does not answer", url.host, url.port)
                        : fmt::format("{}:{} answers \"{}\"", url.host, url.port, answer);
}

}  // namespace megalith::observe
