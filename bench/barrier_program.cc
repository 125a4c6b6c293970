// The program that startup_bench starts: `barrier_program N` runs N ranks that connect and pass one barrier.
#include <fmt/format.h>

#include <cstdlib>

#include "megalith/comm/launch/launcher.h"
#include "megalith/parallel/runtime.h"

namespace {

int rank_main() {
  megalith::parallel::RuntimeSettings settings;
  settings.device.use_cpu = true;  // as the peer does
  megalith::parallel::Runtime runtime;
  const auto& context = runtime.initialize(settings);
  const auto world = context.world().world();
  world.barrier("first");
  if (context.rank() == 0) {
    fmt::print("barrier\n");
    std::fflush(stdout);
  }
  world.barrier("last");
  runtime.shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  megalith::comm::LaunchOptions options;
  options.nproc = argc > 1 ? std::atoi(argv[1]) : 4;
  return megalith::comm::launch_ranks(options, rank_main);
}
