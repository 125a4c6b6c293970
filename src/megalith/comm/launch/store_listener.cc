// The launcher listens before it forks and hands the socket to TCPStore afterwards: ranks know the port from the start,
// even a free one that the kernel picks, and nobody can take it in between.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/comm/launch/store_listener_internal.h"

namespace megalith::comm {

namespace {

// Binds and listens. Returns a negative number with errno set if it cannot.
int listen_on(const sockaddr* address, socklen_t length, bool also_ipv4) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (also_ipv4) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(fd, address, length) == 0 && listen(fd, 1024) == 0) return fd;  // 1024: all ranks connect at once
  // close() may change errno, and the caller reports the first error.
  const int reason = errno;
  close(fd);
  errno = reason;
  return -1;
}

int listen_on_loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return listen_on(reinterpret_cast<sockaddr*>(&address), sizeof address, false);
}

// Opens one socket for IPv6 and IPv4; for IPv4 only on a machine without IPv6.
int listen_everywhere(uint16_t port) {
  sockaddr_in6 both{};
  both.sin6_family = AF_INET6;
  both.sin6_port = htons(port);
  both.sin6_addr = in6addr_any;
  const int fd = listen_on(reinterpret_cast<sockaddr*>(&both), sizeof both, true);
  if (fd >= 0 || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)) return fd;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  return listen_on(reinterpret_cast<sockaddr*>(&address), sizeof address, false);
}

}  // namespace

// On one machine only loopback, so that nobody else can connect. The port is read back, since 0 asks for any.
int listen_for_store(const LaunchOptions& options, int& port) {
  const bool local = options.nnodes == 1;
  const auto wanted = static_cast<uint16_t>(options.master_port);
  const int fd = local ? listen_on_loopback(wanted) : listen_everywhere(wanted);
  check<CommError>(fd >= 0,
                   "cannot listen on port {} of {} (interface {}): {}. Another program may be using it: choose another"
                   " --master_port{}.",
                   options.master_port, local ? "127.0.0.1" : "this machine", local ? "lo" : "any",
                   std::strerror(errno), local ? ", or leave it out to get a free one" : " on all machines");
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
  return fd;
}

}  // namespace megalith::comm
