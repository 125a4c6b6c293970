#include "tests/support/run_ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "megalith/base/error.h"
#include "megalith/comm/store/process_settings.h"
#include "tests/support/free_port.h"

namespace megalith::testing {

namespace {

// Every thread asks for itself: OpenMP counts per thread, and MKL would split a rank's products over all cores, and so
// round them otherwise, until libtorch's first parallel loop in that thread.
void run_on_threads(int size, const std::function<void(int rank)>& body) {
  at::set_num_threads(1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      body(rank);
    });
  for (std::thread& thread : threads) thread.join();
}

// Runs the body of one rank; reports what it throws, unless it only echoes another rank's failure.
void run_body(comm::World& world, const std::function<void(const Rank&)>& body) {
  try {
    body({world.rank(), world.size(), world});
  } catch (const std::exception& error) {
    const std::string what = error.what();
    if (dynamic_cast<const comm::PeerFailure*>(&error) == nullptr)
      ADD_FAILURE() << "rank " << world.rank() << " threw: " << what;
    world.report_failure("rank " + std::to_string(world.rank()) + " threw: " + what);
  }
}

}  // namespace

void run_ranks(int size, const std::function<void(const Rank&)>& body, std::chrono::milliseconds timeout) {
  comm::WorldOptions options;
  options.timeout = timeout;
  const auto worlds = comm::World::in_process(size, options);
  run_on_threads(size, [&](int rank) { run_body(*worlds[static_cast<size_t>(rank)], body); });
}

void run_gloo_ranks(int size, const std::function<void(const Rank&)>& body, comm::WorldOptions options) {
  // An operation and the end of the world may both run into it before CTest ends the test, unheard.
  if (options.timeout == comm::WorldOptions().timeout) options.timeout = std::chrono::seconds(40);
  const int port = free_port();
  comm::prepare_c10d();
  run_on_threads(size, [&](int rank) {
    comm::Rendezvous place;
    place.rank = place.local_rank = rank;
    place.world_size = place.local_world_size = size;
    place.master_port = port;
    place.hosts_store = rank == 0;
    std::unique_ptr<comm::World> world;
    try {
      world = comm::World::connect(place, options);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << " could not connect: " << error.what();
      return;
    }
    run_body(*world, body);
    try {
      world->close();
    } catch (const CommError&) {
      // A rank failed and has said so.
    }
  });
}

}  // namespace megalith::testing
