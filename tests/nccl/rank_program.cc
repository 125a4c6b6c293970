// One rank of a small group that does its part of a collective, or fails to: `nccl_rank_program SCENARIO BACKEND`,
// started once per rank with the variables of a launcher. With BACKEND nccl all tensors are on GPU 0.
//
//   whole          every rank does its part
//   peer_gone      rank 1 starts the collective and is killed in the middle of it
//   kernel_stuck   rank 1's device is busy with a kernel that does not end (on the CPU: rank 1 never comes)
//   wrong_size     rank 1 gives another number of elements than the others
//   wrong_sum      rank 1 asks for the maximum where the others ask for the sum, which no transport notices
//   wrong_sum_once the same, and then all continue for minutes
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/comm/world.h"
#include "megalith/train/device/device_waits.h"

namespace megalith::comm {
namespace {

constexpr int kCulprit = 1;
constexpr int64_t kElements = 1 << 24;  // 64 MiB: a collective that takes a while

// The result is read, so that the host waits for the device.
void add_up(const Group& group, int64_t elements, at::Device device) {
  const at::Tensor values = at::ones({elements}, at::TensorOptions(at::kFloat).device(device));
  group.all_reduce(values, ReduceOp::kSum, "test sum");
  const double last = values[elements - 1].item<double>();
  check(last == group.size(), "the sum is {}, not {}", last, group.size());
}

// The sum that is made wrong: a small tensor, so that the transport has no reason to complain.
void add_up_differently(const Group& group, bool culprit, bool go_on, at::Device device) {
  const at::Tensor values = at::ones({16}, at::TensorOptions(at::kFloat).device(device));
  group.all_reduce(values, culprit ? ReduceOp::kMax : ReduceOp::kSum, "test sum");
  for (int i = 0; go_on && i < 60000; ++i) {
    add_up(group, 16, device);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void act(World& world, const std::string& scenario, at::Device device) {
  const Group group = world.world();
  const bool culprit = world.rank() == kCulprit;
  add_up(group, 16, device);
  fmt::print(stderr, "rank {} is ready\n", world.rank());
  if (scenario == "peer_gone" && culprit) {
    const at::Tensor values = at::ones({kElements}, at::TensorOptions(at::kFloat).device(device));
    Work work = group.all_reduce_async(values, ReduceOp::kSum, "test sum");
    ::raise(SIGKILL);
    work.wait();
  }
  if (scenario.starts_with("wrong_sum"))
    return add_up_differently(group, culprit, scenario == "wrong_sum_once", device);
  if (scenario == "kernel_stuck" && culprit) train::stall_device(device);
  add_up(group, scenario == "wrong_size" && culprit ? kElements + 4096 : kElements, device);
  group.barrier("after the sum");
}

[[noreturn]] void end_stuck(const std::string& reason) {
  fmt::print(stderr, "the run is over: {}\n", reason);
  std::fflush(nullptr);
  _exit(1);
}

int run_rank(const std::string& scenario, const std::string& backend) {
  WorldOptions options;
  options.backend = backend;
  if (backend == "nccl") options.device = at::Device(at::kCUDA, 0);
  options.timeout = std::chrono::seconds(env_int("TIMEOUT_SECONDS").value_or(15));
  options.debug = env_flag("MEGALITH_COMM_DEBUG");
  options.interface = "lo";
  options.on_stuck = end_stuck;
  const auto world = World::connect(rendezvous_from_env(), options);
  try {
    act(*world, scenario, options.device);
    world->close();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    world->report_failure(fmt::format("rank {}: {}", world->rank(), error.what()));
    return 1;
  }
}

}  // namespace
}  // namespace megalith::comm

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: nccl_rank_program SCENARIO nccl|gloo\n");
    return 2;
  }
  try {
    return megalith::comm::run_rank(argv[1], argv[2]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
