// A TCP port on loopback that nobody uses at the moment.
#pragma once

namespace megalith::testing {

// Returns a TCP port of this machine that nobody listens on now.
int free_port();

}  // namespace megalith::testing
