// A TCP port on loopback that nobody uses at the moment.
#pragma once

namespace megalith::testing {

int free_port();

}  // namespace megalith::testing
