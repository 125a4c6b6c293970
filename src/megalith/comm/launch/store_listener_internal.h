// The listening socket of the store that a launcher serves.
#pragma once

#include "megalith/comm/launch/launcher.h"

namespace megalith::comm {

// Returns a socket that listens for the store's clients and sets `port`. Throws CommError when the port is taken.
int listen_for_store(const LaunchOptions& options, int& port);

}  // namespace megalith::comm
