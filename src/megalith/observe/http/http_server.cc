// A connection goes through three states:
//
//   reading   bytes are collected until parse_http is satisfied or refuses        request_time
//   writing   the answer is sent as fast as the client takes it                   answer_time
//   draining  the answer is out; what still comes is thrown away until the        kDrainTime
//             client closes. Closing first would make the kernel discard an
//             answer that the client has not read (a refusal of a large body).
#include "megalith/observe/http/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <map>
#include <optional>

#include "megalith/base/error.h"

namespace megalith::observe {

namespace {

using ServerClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kDrainTime{1000};

// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

struct Connection {
  enum class State { kReading, kWriting, kDraining, kClosed };
  Descriptor socket;
  std::string address;  // without the port
  ServerClock::time_point deadline;
  State state = State::kReading;
  std::string received{}, answer{};
  size_t sent = 0;
};
using State = Connection::State;

// "127.0.0.1", or the text of an IPv6 address.
std::string address_text(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text.data(), text.size());
  else
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text.data(), text.size());
  return text.data();
}

// Returns a socket that listens, or none: the address is taken or not this machine's.
Descriptor listen_on(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return Descriptor();
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Descriptor socket(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (socket.get() < 0) continue;
    // A server that was just ended does not block its port. Two servers never share one, as SO_REUSEPORT would allow.
    const int yes = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    constexpr int kBacklog = 256;
    if (::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket.get(), kBacklog) == 0) return socket;
  }
  return Descriptor();
}

int port_of_socket(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

const char* reason_of(int status) {
  static const std::map<int, const char*> kReasons{
      {200, "OK"},           {204, "No Content"},         {303, "See Other"},
      {400, "Bad Request"},  {401, "Unauthorized"},       {403, "Forbidden"},
      {404, "Not Found"},    {405, "Method Not Allowed"}, {413, "Content Too Large"},
      {414, "URI Too Long"}, {415, "Unsupported Type"},   {431, "Request Header Fields Too Large"},
      {500, "Server Error"}, {501, "Not Implemented"},    {505, "HTTP Version Not Supported"}};
  const auto found = kReasons.find(status);
  return found == kReasons.end() ? "" : found->second;
}

std::string wire_text(const HttpResponse& response, bool with_body) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
                                 response.status, reason_of(response.status), response.type, response.body.size());
  for (const auto& [name, value] : response.headers) text += fmt::format("{}: {}\r\n", name, value);
  text += "\r\n";
  if (with_body) text += response.body;
  return text;
}

}  // namespace

class HttpServer::Loop {
 public:
  Loop(Settings settings, Handler handler)
      : settings_(std::move(settings)),
        handler_(std::move(handler)),
        listener_(listen_on(settings_.host, settings_.port)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    check<ConfigError>(listener_.get() >= 0,
                       "cannot listen on {} port {}: the address is not this machine's, or the port is taken. Choose "
                       "another --port (0 picks a free one) or another --host",
                       settings_.host, settings_.port);
  }

  int port() const { return port_of_socket(listener_.get()); }

  void stop() {
    stopped_ = true;
    const uint64_t one = 1;
    // A counter that is already set wakes the loop as well.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void run() {
    while (!stopped_) {
      wait();
      // Reads come before deadlines: a request that arrived while a long answer was made is not late.
      for (Connection& connection : connections_) serve(connection);
      const auto now = ServerClock::now();
      std::erase_if(connections_,
                    [&](const Connection& each) { return each.state == State::kClosed || each.deadline <= now; });
      accept_all();
    }
    connections_.clear();
  }

 private:
  // Waits for something to do: a connection, bytes, room to write, a deadline, or stop().
  void wait() {
    std::vector<pollfd> waits{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    std::optional<ServerClock::time_point> first;
    for (const Connection& each : connections_) {
      waits.push_back({each.socket.get(), static_cast<short>(each.state == State::kWriting ? POLLOUT : POLLIN), 0});
      if (!first || each.deadline < *first) first = each.deadline;
    }
    int timeout_ms = -1;
    if (first) timeout_ms = static_cast<int>(std::max<int64_t>(0, (*first - ServerClock::now()) / milliseconds(1) + 1));
    ::poll(waits.data(), waits.size(), timeout_ms);
  }

  void accept_all() {
    for (;;) {
      sockaddr_storage from{};
      socklen_t size = sizeof from;
      Descriptor socket(
          ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (socket.get() < 0 && (errno == EMFILE || errno == ENFILE) && !connections_.empty()) {
        connections_.pop_front();  // the process has no descriptor left; the oldest connection gives its own
        continue;
      }
      if (socket.get() < 0) return;
      connections_.push_back({std::move(socket), address_text(from), ServerClock::now() + settings_.request_time});
      keep_limits(connections_.back().address);
      serve(connections_.back());  // most requests are already here
    }
  }

  void keep_limits(const std::string& newest) {
    std::map<std::string, size_t> count;
    for (const Connection& each : connections_) ++count[each.address];
    if (count[newest] > settings_.connections_per_address) return drop_one(newest);
    if (connections_.size() <= settings_.connections) return;
    drop_one(std::ranges::max_element(count, {}, [](const auto& entry) { return entry.second; })->first);
  }

  // Closes the oldest connection of an address; those whose answer is being sent only if there is no other. The newest
  // connection, which caused this, stays.
  void drop_one(const std::string& address) {
    const auto newest = std::prev(connections_.end());
    const auto is_of = [&](const Connection& each) { return each.address == address; };
    const auto waits = [&](const Connection& each) { return is_of(each) && each.state != State::kWriting; };
    auto victim = std::find_if(connections_.begin(), newest, waits);
    if (victim == newest) victim = std::find_if(connections_.begin(), newest, is_of);
    if (victim == newest) victim = connections_.begin();  // the address has no other connection
    connections_.erase(victim);
  }

  // Does what can be done without waiting; on to the next state as often as possible.
  void serve(Connection& connection) {
    if (connection.state == State::kReading) read(connection);
    if (connection.state == State::kWriting) write(connection);
    if (connection.state == State::kDraining) drain(connection);
  }

  void read(Connection& connection) {
    std::array<char, 16384> bytes;
    for (;;) {
      const ssize_t got = ::recv(connection.socket.get(), bytes.data(), bytes.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) return void(connection.state = State::kClosed);
      connection.received.append(bytes.data(), static_cast<size_t>(got));
      const HttpParse parse = parse_http(connection.received, settings_.request);
      if (parse.status != 0) return answer(connection, parse);
    }
  }

  void answer(Connection& connection, const HttpParse& parse) {
    HttpResponse response;
    if (parse.status == 200) {
      try {
        response = handler_(parse.request);
      } catch (const std::exception&) {
        response = {500, "application/json", R"({"error":"the server failed to answer"})"};
      }
    } else {
      response = {parse.status, "application/json", R"({"error":"this request is refused"})"};
    }
    connection.answer = wire_text(response, parse.request.method != "HEAD");
    connection.received.clear();
    connection.state = State::kWriting;
    connection.deadline = ServerClock::now() + settings_.answer_time;
  }

  void write(Connection& connection) {
    while (connection.sent < connection.answer.size()) {
      const ssize_t put = ::send(connection.socket.get(), connection.answer.data() + connection.sent,
                                 connection.answer.size() - connection.sent, MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (put < 0) return void(connection.state = State::kClosed);
      connection.sent += static_cast<size_t>(put);
    }
    ::shutdown(connection.socket.get(), SHUT_WR);
    connection.answer = {};
    connection.state = State::kDraining;
    connection.deadline = ServerClock::now() + kDrainTime;
  }

  static void drain(Connection& connection) {
    std::array<char, 16384> bytes;
    for (int rounds = 0; rounds < 64; ++rounds) {  // a flood must not keep the loop here
      const ssize_t got = ::recv(connection.socket.get(), bytes.data(), bytes.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got <= 0) return void(connection.state = State::kClosed);
    }
  }

  const Settings settings_;
  const Handler handler_;
  const Descriptor listener_, wake_;
  std::atomic<bool> stopped_ = false;
  std::list<Connection> connections_;  // oldest first; the loop's thread only
};

HttpServer::HttpServer(Settings settings, Handler handler)
    : loop_(std::make_unique<Loop>(std::move(settings), std::move(handler))) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const { return loop_->port(); }
void HttpServer::run() { loop_->run(); }
void HttpServer::stop() { loop_->stop(); }

}  // namespace megalith::observe
