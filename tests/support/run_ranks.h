// Ranks as threads: a test body runs once a rank and talks through real Groups.
#pragma once

#include <functional>

#include "megalith/comm/world.h"

namespace megalith::testing {

// The argument of a test body: its rank and its world.
struct Rank {
  int rank;
  int size;
  comm::World& world;
};

// Runs `body` on `size` threads and joins them all. A rank that throws fails the test with its number and message, and
// the others are told at once, so that nothing waits. Operations have a limit of `timeout`.
//
//   run_ranks(4, [](const Rank& r) { … });
void run_ranks(int size, const std::function<void(const Rank&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60));

// The same over Gloo on loopback, still threads of this process: the transport that processes use.
void run_gloo_ranks(int size, const std::function<void(const Rank&)>& body, comm::WorldOptions options = {});

}  // namespace megalith::testing
