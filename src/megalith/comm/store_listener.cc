#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/comm/store_listener_internal.h"

namespace megalith::comm {

int listen_for_store(const LaunchOptions& options, int& port) {
  const bool local = options.nnodes == 1;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  check<CommError>(fd >= 0, "cannot make a socket: {}", std::strerror(errno));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(options.master_port));
  address.sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || listen(fd, 1024) != 0) {
    const std::string reason = std::strerror(errno);
    close(fd);
    throw CommError(
        fmt::format("cannot listen on port {} of {} (interface {}): {}. Another program may be using it: choose"
                    " another --master_port{}.",
                    options.master_port, local ? "127.0.0.1" : "this machine", local ? "lo" : "any", reason,
                    local ? ", or leave it out to get a free one" : " on all machines"));
  }
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  port = ntohs(address.sin_port);
  return fd;
}

}  // namespace megalith::comm
