#include "tests/support/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

namespace megalith::testing {

// Below the range from which the kernel takes ports for outgoing connections: tests that run at the same time make many
// of those, and one would take a port between the moment it is found free and the moment it is used.
int free_port() {
  std::random_device random;
  std::uniform_int_distribution<int> ports(12'000, 31'000);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int port = ports(random);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(fd);
    if (free) return port;
  }
  return 0;
}

}  // namespace megalith::testing
