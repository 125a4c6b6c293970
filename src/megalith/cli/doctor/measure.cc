// Every number is the median of repeated runs on this rank and then the slowest of all ranks, since a step waits for
// the slowest. Work that ranks do together is repeated a fixed number of times, so that all of them call the same
// collectives; the rest is repeated until it has taken a fifth of a second.
#include "megalith/cli/doctor/measure.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>

#include "megalith/comm/store/rendezvous.h"
#include "megalith/ops/attention/attention.h"

namespace megalith::cli {

namespace {

using Clock = std::chrono::steady_clock;

// Kernels are asynchronous: without waiting, only their launches would be timed.
void finish(at::Device device) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
}

// Returns the median of a few runs, after a warm-up run that does not count. `runs` fixes their number, for collective
// work. Work that takes longer than a second is not repeated: bf16 products on a CPU without instructions for them.
double seconds_of(at::Device device, const std::function<void()>& work, size_t runs = 0) {
  const auto once = [&] {
    const auto begin = Clock::now();
    work();
    finish(device);
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const double first = once();
  if (runs == 0 && first > 1) return first;
  std::vector<double> times;
  const auto continues = [&](double spent) {
    return runs > 0 ? times.size() < runs : times.size() < 3 || (spent < 0.2 && times.size() < 50);
  };
  for (double spent = 0; continues(spent);) {
    times.push_back(once());
    spent += times.back();
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

// Square products, as plan::Cluster's curve expects.
double gemm_speed(at::Device device, at::ScalarType type, int64_t edge) {
  const at::Tensor a = at::randn({edge, edge}, device).to(type), b = at::randn({edge, edge}, device).to(type);
  at::Tensor c = at::empty({edge, edge}, a.options());
  const auto size = static_cast<double>(edge);
  return 2 * size * size * size / seconds_of(device, [&] { at::mm_out(c, a, b); });
}

struct AttentionSpeed {
  double forward, backward;
};

// Heads of 128 channels, the size that plan's corrections start from.
AttentionSpeed attention_speed(at::Device device) {
  const int64_t length = device.is_cuda() ? 4096 : 1024, heads = device.is_cuda() ? 32 : 4, size = 128;
  const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
  const at::Tensor q = at::randn({length, heads, size}, device).to(options.dtype()), k = q.clone(), v = q.clone();
  const auto layout = ops::SequenceLayout::dense(1, length);
  const double flop = 2.0 * static_cast<double>(length * length * heads * size);  // causal: half of 4
  const ops::AttentionResult result = ops::attention_forward(q, k, v, layout, layout, {});
  const double forward = seconds_of(device, [&] { ops::attention_forward(q, k, v, layout, layout, {}); });
  const double backward = seconds_of(device, [&] { ops::attention_backward(v, q, k, v, result, layout, layout, {}); });
  return {flop / forward, 2.5 * flop / backward};  // backward has five products where forward has two
}

// A copy reads and writes every byte, hence the factor 2. The sizes exceed all caches.
double memory_speed(at::Device device) {
  const int64_t bytes = device.is_cuda() ? int64_t{1} << 30 : int64_t{1} << 27;
  const at::Tensor from = at::zeros({bytes}, at::TensorOptions(device).dtype(at::kByte));
  const at::Tensor to = at::empty_like(from);
  return 2 * static_cast<double>(bytes) / seconds_of(device, [&] { to.copy_(from); });
}

// Measures an all-gather of a large and of a tiny message. The difference gives the bandwidth, the tiny one the
// latency, by the same formula as plan::GroupSpeed::all_gather.
plan::LinkSpeed link_speed(const comm::Group& world, at::Device device) {
  const int64_t bytes = device.is_cuda() ? int64_t{1} << 28 : int64_t{1} << 24, n = world.size();
  const at::Tensor part = at::zeros({bytes / n}, at::TensorOptions(device).dtype(at::kByte));
  const at::Tensor all = at::empty({bytes / n * n}, part.options()), one = at::zeros({1}, part.options());
  const double large = seconds_of(
      device, [&] { world.all_gather(all, part, "measure"); }, 9);
  const at::Tensor few = at::empty({n}, one.options());
  const double small = seconds_of(
      device, [&] { world.all_gather(few, one, "measure"); }, 9);
  const double moved = static_cast<double>(bytes) * static_cast<double>(n - 1) / static_cast<double>(n);
  return {moved / std::max(1e-9, large - small), small / (1 + std::log2(static_cast<double>(n)))};
}

// Returns 0 if the system does not say.
double host_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, line; file >> key && std::getline(file, line);)
    if (key == "MemTotal:") return std::stod(line) * 1024;
  return 0;
}

// Reduces a value over all ranks, so that they all continue with the same.
double agreed(const comm::Group& world, double value, at::Device device, comm::ReduceOp op) {
  const at::Tensor all = at::full({1}, value, at::TensorOptions(device).dtype(at::kFloat));
  world.all_reduce(all, op, "measure");
  return all.item<double>();
}

// The preset that fills in what cannot be measured.
plan::Cluster base_of(at::Device device) { return plan::find_cluster(device.is_cuda() ? "h100-80g" : "cpu"); }

}  // namespace

plan::Cluster measure_machine(parallel::ParallelContext& context) {
  const at::Device device = context.device();
  const comm::Group world = context.world().world();
  plan::Cluster cluster = base_of(device);
  const int local = comm::rendezvous_from_env().local_world_size;
  cluster.gpu = "measured";
  cluster.gpus_per_node = local;
  cluster.nodes = std::max(1, world.size() / local);
  const auto slowest = [&](double speed) { return agreed(world, speed, device, comm::ReduceOp::kMin); };
  cluster.gemm.clear();
  const std::vector<int64_t> edges =
      device.is_cuda() ? std::vector<int64_t>{256, 512, 1024, 2048, 4096, 8192} : std::vector<int64_t>{64, 256, 1024};
  double fp32 = 0;
  for (const int64_t edge : edges) {
    const auto size = static_cast<double>(edge);
    cluster.gemm.push_back({2 * size * size * size, slowest(gemm_speed(device, at::kBFloat16, edge))});
    // Only the largest product counts for the ratio; the smaller ones are overwritten.
    fp32 = slowest(gemm_speed(device, at::kFloat, edge));
  }
  cluster.fp32_factor = fp32 / cluster.gemm.back().flops_per_second;
  if (!device.is_cuda()) cluster.peak_flops = cluster.gemm.back().flops_per_second;
  const AttentionSpeed attention = attention_speed(device);
  cluster.attention_flops = slowest(attention.forward);
  cluster.attention_backward_flops = slowest(attention.backward);
  cluster.memory_bytes_per_second = slowest(memory_speed(device));
  if (world.size() > 1) {
    plan::LinkSpeed link = link_speed(world, device);
    link = {slowest(link.bytes_per_second), agreed(world, link.latency_s, device, comm::ReduceOp::kMax)};
    // A group over several machines runs at the speed of the network between them.
    (cluster.nodes > 1 ? cluster.inter : cluster.intra) = link;
  }
  cluster.memory_bytes = device.is_cuda() ? static_cast<double>(at::accelerator::getMemoryInfo(device.index()).second)
                                          : host_memory_bytes() / local;
  cluster.reserved_bytes = 0.06 * cluster.memory_bytes;
  return cluster;
}

}  // namespace megalith::cli
