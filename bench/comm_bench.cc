// Measures a small all-reduce between ranks that are threads against the same over Gloo on loopback. Prints one JSON
// line per case.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/comm/store/process_settings.h"
#include "megalith/comm/world.h"
#include "tests/support/free_port.h"

namespace megalith {
namespace {

// Returns the median microseconds of an all-reduce of `elements` floats on this rank. Checks the answer first.
double time_all_reduce(comm::World& world, int64_t elements, int repeats) {
  const auto group = world.world();
  at::Tensor data = at::ones({elements});
  group.all_reduce(data);
  check(data.eq(world.size()).all().item<bool>(), "all_reduce is wrong");
  data.fill_(1);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    group.all_reduce(data, comm::ReduceOp::kMax);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

// Ranks as threads of this process, with their shared-memory exchange.
double run_threads(int ranks, int64_t elements, int repeats) {
  auto worlds = comm::World::in_process(ranks);
  double result = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      const double time = time_all_reduce(*worlds[static_cast<size_t>(rank)], elements, repeats);
      if (rank == 0) result = time;
    });
  for (auto& thread : threads) thread.join();
  return result;
}

// The same ranks as threads, each with its own connection over loopback.
double run_gloo(int ranks, int64_t elements, int repeats) {
  const int port = testing::free_port();
  comm::prepare_c10d();
  double result = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      comm::Rendezvous place;
      place.rank = place.local_rank = rank;
      place.world_size = place.local_world_size = ranks;
      place.master_port = port;
      place.hosts_store = rank == 0;
      const auto world = comm::World::connect(place, {});
      const double time = time_all_reduce(*world, elements, repeats);
      if (rank == 0) result = time;
      world->close();
    });
  for (auto& thread : threads) thread.join();
  return result;
}

}  // namespace
}  // namespace megalith

int main() {
  // Ranks are threads already; libtorch's own would only disturb them.
  at::set_num_threads(1);
  for (int ranks : {2, 4, 8, 16})
    for (int64_t elements : {int64_t{1}, int64_t{1} << 16}) {
      const double threads = megalith::run_threads(ranks, elements, 201);
      // Gloo is slower, so fewer repeats fit into the same time.
      const double gloo = megalith::run_gloo(ranks, elements, 21);
      fmt::print("{}\n", nlohmann::ordered_json{{"bench", "all_reduce"},
                                                {"ranks", ranks},
                                                {"bytes", elements * 4},
                                                {"threads_us", threads},
                                                {"gloo_us", gloo},
                                                {"ratio", gloo / threads}}
                             .dump());
    }
}
