// A program of several real processes, for tests: `rank_program --nproc N SCENARIO`, or started once a rank with the
// variables of a launcher. Each scenario is something that ranks do, or fail to do.
#include <ATen/Context.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>
#include <thread>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/comm/launch/launcher.h"
#include "megalith/comm/world.h"

namespace megalith::comm {
namespace {

using std::chrono::milliseconds;

int number_from_env(const char* name, int otherwise) { return static_cast<int>(env_int(name).value_or(otherwise)); }

void check_collectives_on(World& world, at::Device device) {
  const auto on = [&](at::ScalarType type) { return at::TensorOptions(type).device(device); };
  const Group all = world.world();
  const int size = world.size();
  at::Tensor sum = at::full({1000}, world.rank() + 1, on(at::kFloat));
  all.all_reduce(sum, ReduceOp::kSum, "sum");
  check(at::equal(sum, at::full({1000}, size * (size + 1) / 2, on(at::kFloat))), "all_reduce is wrong");

  at::Tensor gathered = at::empty({size}, on(at::kLong));
  all.all_gather(gathered, at::full({1}, world.rank(), on(at::kLong)));
  check(at::equal(gathered, at::arange(size, on(at::kLong))), "all_gather is wrong");

  at::Tensor own = at::empty({2}, on(at::kBFloat16));
  all.reduce_scatter(own, at::ones({2 * size}, on(at::kBFloat16)));
  check(at::equal(own, at::full({2}, size, on(at::kBFloat16))), "reduce_scatter is wrong");

  at::Tensor swapped = at::empty({size}, on(at::kInt));
  all.all_to_all(swapped, at::full({size}, world.rank(), on(at::kInt)));
  check(at::equal(swapped, at::arange(size, on(at::kInt))), "all_to_all is wrong");

  at::Tensor root = at::full({4}, world.rank(), on(at::kHalf));
  all.broadcast(root, size - 1);
  check(at::equal(root, at::full({4}, size - 1, on(at::kHalf))), "broadcast is wrong");

  const int next = (world.rank() + 1) % size, previous = (world.rank() + size - 1) % size;
  at::Tensor received = at::empty({3}, on(at::kFloat));
  if (size > 1)
    all.batch(
        {{OpKind::kSend, at::full({3}, world.rank(), on(at::kFloat)), next}, {OpKind::kRecv, received, previous}});
  check(size == 1 || at::equal(received, at::full({3}, previous, on(at::kFloat))), "batch is wrong");
  check(all.all_gather_bytes("rank " + std::to_string(world.rank())).back() == fmt::format("rank {}", size - 1),
        "all_gather_bytes is wrong");
}

void check_collectives(World& world) { check_collectives_on(world, at::kCPU); }

// The rank that misbehaves in the scenarios below.
bool is_culprit(const World& world) { return world.rank() == number_from_env("CULPRIT", 2); }

using Scenario = void (*)(World&);

const std::map<std::string, Scenario>& scenarios() {
  static const std::map<std::string, Scenario> all{
      {"collectives", check_collectives},
      {"cuda_collectives",
       [](World& world) {
         check<ConfigError>(at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0, "no GPU is visible");
         check_collectives_on(world, at::Device(at::kCUDA, 0));
       }},
      {"never_enters",
       [](World& world) {
         world.world().barrier("warm-up");
         if (is_culprit(world)) std::this_thread::sleep_for(std::chrono::seconds(3600));
         world.world().all_reduce(at::ones({4}), ReduceOp::kSum, "grad_norm");
       }},
      {"killed",
       [](World& world) {
         world.world().barrier("warm-up");
         if (is_culprit(world)) raise(SIGKILL);
         while (true) world.world().all_reduce(at::ones({4}), ReduceOp::kSum, "grad_norm");
       }},
      {"killed_while_others_compute",
       [](World& world) {
         world.world().barrier("warm-up");
         if (is_culprit(world)) raise(SIGKILL);
         std::this_thread::sleep_for(std::chrono::seconds(3600));
       }},
      {"throws",
       [](World& world) {
         world.world().barrier("warm-up");
         check<DataError>(!is_culprit(world), "train.jsonl, line 7: not JSON");
         world.world().barrier("after reading");
       }},
      {"mismatch",
       [](World& world) {
         if (is_culprit(world))
           world.world().all_reduce(at::ones({5}), ReduceOp::kSum, "loss");
         else
           world.world().all_reduce(at::ones({4}), ReduceOp::kSum, "loss");
       }},
      {"runs_until_ended",
       [](World& world) {
         world.world().barrier("warm-up");
         fmt::print("ready\n");
         std::fflush(stdout);
         std::this_thread::sleep_for(std::chrono::seconds(3600));
       }},
      {"ignores_sigterm",
       [](World& world) {
         std::signal(SIGTERM, SIG_IGN);
         world.world().barrier("warm-up");
         fmt::print("ready\n");
         std::fflush(stdout);
         std::this_thread::sleep_for(std::chrono::seconds(3600));
       }},
      {"pauses",
       [](World& world) {
         world.world().barrier("warm-up");
         fmt::print("ready\n");
         std::fflush(stdout);
         std::this_thread::sleep_for(std::chrono::seconds(8));
       }},
      {"file_limit",
       [](World&) {
         rlimit limit{};
         getrlimit(RLIMIT_NOFILE, &limit);
         fmt::print("may open {} files of {}\n", limit.rlim_cur, limit.rlim_max);
       }},
      {"claims",
       [](World& world) {  // all ask for one thing, and for one of their own
         const std::string mine = fmt::format("rank {}", world.rank());
         check(world.claim(mine, mine) == mine, "{} did not get what nobody else asked for", mine);
         const std::string holder = world.claim("the only one", mine);
         check(world.claim("the only one", "somebody else") == holder, "the holder has changed");
         for (const std::string& told : world.world().all_gather_bytes(holder, "holders"))
           check(told == holder, "one rank was told {}, another {}", told, holder);
         fmt::print("held by {}\n", holder);
       }},
      {"says_a_lot",
       [](World& world) {
         for (int i = 0; i < 2000; ++i) fmt::print("line {} of rank {}\n", i, world.rank());
       }},
      {"twice", check_collectives},
  };
  return all;
}

int run_once(const std::string& name) {
  WorldOptions options;
  options.timeout = milliseconds(number_from_env("TIMEOUT_MS", 20000));
  options.connect_timeout = milliseconds(number_from_env("CONNECT_TIMEOUT_MS", 20000));
  options.debug = env_flag("MEGALITH_COMM_DEBUG");
  options.on_stuck = [](const std::string& reason) {
    fmt::print(stderr, "stuck: {}\n", reason);
    _exit(1);
  };
  const auto world = World::connect(rendezvous_from_env(), options);
  try {
    scenarios().at(name)(*world);
    world->close();
  } catch (const Error& error) {
    world->report_failure(fmt::format("rank {}: {}", world->rank(), error.what()));
    throw;
  }
  fmt::print("rank {} of {} is done\n", world->rank(), world->size());
  return 0;
}

int run_scenario(const std::string& name) {
  try {
    if (name == "twice") run_once(name);  // leave and come back, in one process
    return run_once(name);
  } catch (const ConfigError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return dynamic_cast<const DataError*>(&error) != nullptr ? 2 : 1;
  }
}

}  // namespace
}  // namespace megalith::comm

int main(int argc, char** argv) {
  using namespace megalith;
  comm::LaunchOptions launch;
  int nproc = 0;
  std::string name;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--nproc")
      nproc = std::atoi(argv[++i]);
    else if (word == "--nnodes")
      launch.nnodes = std::atoi(argv[++i]);
    else if (word == "--node_rank")
      launch.node_rank = std::atoi(argv[++i]);
    else if (word == "--master_addr")
      launch.master_addr = argv[++i];
    else if (word == "--master_port")
      launch.master_port = std::atoi(argv[++i]);
    else if (word == "--log_dir")
      launch.log_dir = argv[++i];
    else if (word == "--grace_ms")
      launch.grace = std::chrono::milliseconds(std::atoi(argv[++i]));
    else
      name = word;
  }
  if (nproc == 0) return comm::run_scenario(name);
  launch.nproc = nproc;
  try {
    return comm::launch_ranks(launch, [&] { return comm::run_scenario(name); });
  } catch (const megalith::ConfigError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
