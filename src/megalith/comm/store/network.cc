// Plain sockets: name resolution, the route of a packet, and non-blocking connects with a limit. Unlike c10d, these
// report what the network answered, which is what a user needs when a run does not start.
#include "megalith/comm/store/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "megalith/base/log.h"

namespace megalith::comm {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Resolves the name; empty if that fails.
Addresses addresses_of(const std::string& host, int port, int socket_type) {
  addrinfo hints{};
  hints.ai_socktype = socket_type;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

// "10.0.0.7", "fe80::1"; never a name, which could take seconds to look up.
std::string numeric_address(const sockaddr* address, socklen_t length) {
  char text[INET6_ADDRSTRLEN] = "";
  getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

// Returns the name of the interface with this numeric address; empty if there is none.
std::string interface_of(const std::string& address, int family, socklen_t length) {
  std::string name;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return name;
  for (const ifaddrs* i = interfaces; i != nullptr && name.empty(); i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family) continue;
    if (address == numeric_address(i->ifa_addr, length)) name = i->ifa_name;
  }
  freeifaddrs(interfaces);
  return name;
}

// Makes one attempt to open a TCP connection; returns 0 or the errno.
int try_connect(const addrinfo& target, std::chrono::milliseconds limit) {
  const int fd = socket(target.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  // Non-blocking, because a blocking connect to a silent host takes minutes, and its limit cannot be set.
  int error = connect(fd, target.ai_addr, target.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready{fd, POLLOUT, 0};
    socklen_t length = sizeof error;
    if (poll(&ready, 1, static_cast<int>(limit.count())) <= 0)
      error = ETIMEDOUT;
    else
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  }
  close(fd);
  return error;
}

// Returns 0 at the first address that answers, else the error of the last.
int try_addresses(const Addresses& found, std::chrono::milliseconds limit) {
  int error = 0;
  for (const addrinfo* target = found.get(); target != nullptr; target = target->ai_next)
    if (error = try_connect(*target, limit); error == 0) break;
  return error;
}

}  // namespace

std::optional<Route> route_to(const std::string& host, int port) {
  const Addresses found = addresses_of(host, port, SOCK_DGRAM);
  if (!found) return std::nullopt;
  Route route;
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  // A datagram socket "connects" without sending anything: it only looks up the route.
  if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
    route.address = numeric_address(reinterpret_cast<sockaddr*>(&own), length);
    route.interface = interface_of(route.address, own.ss_family, length);
    // Packets to an address of this machine leave from that address.
    route.stays_here = route.address == numeric_address(found->ai_addr, found->ai_addrlen);
  }
  if (fd >= 0) close(fd);
  return route;
}

int probe_listener(const std::string& host, int port, std::chrono::milliseconds limit) {
  const Addresses found = addresses_of(host, port, SOCK_STREAM);
  return found ? try_addresses(found, limit) : EHOSTUNREACH;
}

// TCPStore would also retry, but only once per second, and without saying what the network answered.
std::string wait_for_listener(const std::string& host, int port, std::chrono::milliseconds timeout) {
  const auto begun = std::chrono::steady_clock::now(), deadline = begun + timeout;
  bool told = false;
  for (auto pause = std::chrono::milliseconds(5);; pause *= 2) {
    // Short pauses at first; thousands of ranks that wait for minutes should spare the name server.
    const bool early = std::chrono::steady_clock::now() - begun < std::chrono::seconds(5);
    pause = std::min(pause, std::chrono::milliseconds(early ? 250 : 1000));
    // Resolves again each time: the name of a machine that is still starting may appear, or change, later (Kubernetes).
    const Addresses found = addresses_of(host, port, SOCK_STREAM);
    const int error = found ? try_addresses(found, std::chrono::milliseconds(2000)) : 0;
    if (found && error == 0) return "";
    if (std::chrono::steady_clock::now() + pause >= deadline)
      return found ? std::strerror(error) : "the name does not resolve";
    if (!found && !std::exchange(told, true))
      log_warning("the host name {} of the store does not resolve yet; trying for {:g} s", host,
                  std::chrono::duration<double>(timeout).count());
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace megalith::comm
