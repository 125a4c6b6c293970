#include "tests/support/cuttable_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "tests/support/free_port.h"

namespace megalith::testing {

namespace {

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// Closes with a reset instead of a farewell.
void reset_socket(int fd) {
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd);
}

// Forwards the bytes that have arrived at `from` to `to`. Returns false at the end of the connection.
bool forward(int from, int to) {
  char buffer[1 << 16];
  const ssize_t count = recv(from, buffer, sizeof buffer, 0);
  for (ssize_t sent = 0; sent < count;) {
    const ssize_t part = send(to, buffer + sent, static_cast<size_t>(count - sent), MSG_NOSIGNAL);
    if (part <= 0) return false;
    sent += part;
  }
  return count > 0;
}

}  // namespace

CuttableProxy::CuttableProxy(int target_port) : target_port_(target_port), port_(free_port()) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in address = loopback(port_);
  bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  listen(listener_, 64);
  thread_ = std::thread([this] { run(); });
}

CuttableProxy::~CuttableProxy() {
  stop_ = true;
  thread_.join();
  close_listener();
  std::lock_guard lock(mutex_);
  reset_all();
}

void CuttableProxy::cut() {
  std::lock_guard lock(mutex_);
  reset_all();
}

void CuttableProxy::set_outage(bool on) {
  outage_ = on;
  if (on) cut();
}

void CuttableProxy::close_listener() {
  std::lock_guard lock(mutex_);
  if (const int fd = std::exchange(listener_, -1); fd >= 0) close(fd);
}

void CuttableProxy::reset_all() {
  for (const Pair& pair : pairs_) {
    reset_socket(pair.client);
    reset_socket(pair.server);
  }
  pairs_.clear();
}

// Requires mutex_.
void CuttableProxy::accept_one() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = outage_ ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(target_port_);
  if (server >= 0 && connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    pairs_.push_back({client, server});
    return;
  }
  if (server >= 0) close(server);
  reset_socket(client);
}

void CuttableProxy::run() {
  while (!stop_) {
    {
      std::lock_guard lock(mutex_);
      std::vector<pollfd> fds{{listener_, POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        fds.push_back({pair.client, POLLIN, 0});
        fds.push_back({pair.server, POLLIN, 0});
      }
      poll(fds.data(), fds.size(), 1);
      size_t next = 1;
      for (auto pair = pairs_.begin(); pair != pairs_.end();) {
        const bool from_client = fds[next].revents != 0, from_server = fds[next + 1].revents != 0;
        next += 2;
        if ((from_client && !forward(pair->client, pair->server)) ||
            (from_server && !forward(pair->server, pair->client))) {
          reset_socket(pair->client);
          reset_socket(pair->server);
          pair = pairs_.erase(pair);
        } else {
          ++pair;
        }
      }
      if (fds[0].revents != 0) accept_one();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // lets cut() have the lock
  }
}

}  // namespace megalith::testing
