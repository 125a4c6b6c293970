#include "megalith/cli/self_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "megalith/base/error.h"

namespace megalith::cli {

namespace {

using comm::Group;
using comm::OpKind;
using comm::ReduceOp;

void expect(bool right, const Group& group, const char* operation) {
  check<CommError>(right,
                   "{} of group {} gave a wrong answer. The transport on this machine is broken: try another network"
                   " interface (MEGALITH_SOCKET_IFNAME) or another libtorch.",
                   operation, group.name());
}

// Each operation once, with data that tells the ranks apart.
void check_group(const Group& group, at::Device device) {
  const auto options = at::TensorOptions().device(device);
  const int n = group.size();
  const at::Tensor ranks = at::arange(n, options.dtype(at::kLong));  // [n] what a gather of the ranks gives
  const at::Tensor own = at::full({1}, group.rank(), options.dtype(at::kLong));

  for (auto type : {at::kFloat, at::kBFloat16}) {
    at::Tensor sum = at::full({64}, group.rank() + 1, options.dtype(type));
    group.all_reduce(sum, ReduceOp::kSum, "self-check");
    expect(sum.eq(n * (n + 1) / 2).all().item<bool>(), group, "all_reduce");
  }
  at::Tensor max = own.clone();
  group.all_reduce(max, ReduceOp::kMax, "self-check");
  expect(max.item<int64_t>() == n - 1, group, "all_reduce(max)");

  at::Tensor all = at::empty({n}, options.dtype(at::kLong));
  group.all_gather(all, own, "self-check");
  expect(all.equal(ranks), group, "all_gather");

  at::Tensor block = at::empty({1}, options.dtype(at::kLong));
  group.reduce_scatter(block, ranks, ReduceOp::kSum, "self-check");
  expect(block.item<int64_t>() == int64_t{n} * group.rank(), group, "reduce_scatter");

  group.all_to_all(all, ranks * n + group.rank(), {}, {}, "self-check");
  expect(all.equal(ranks + int64_t{n} * group.rank()), group, "all_to_all");

  at::Tensor last = own.clone();
  group.broadcast(last, n - 1, "self-check");
  expect(last.item<int64_t>() == n - 1, group, "broadcast");

  if (n == 1) return;
  const int next = (group.rank() + 1) % n, previous = (group.rank() + n - 1) % n;
  at::Tensor received = at::empty({1}, options.dtype(at::kLong));
  group.batch({{OpKind::kSend, own, next}, {OpKind::kRecv, received, previous}}, "self-check");
  expect(received.item<int64_t>() == previous, group, "send/recv");
}

// Median of several all-reduces over `group`, in microseconds.
double time_all_reduce(const Group& group, int64_t elements, at::Device device) {
  at::Tensor data = at::full({elements}, 1.0f, at::TensorOptions().device(device));
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    group.barrier("self-check timing");
    const auto start = std::chrono::steady_clock::now();
    group.all_reduce(data, ReduceOp::kMax, "self-check timing");
    (void)data[0].item<float>();  // on CUDA: wait for it
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(times, times.begin() + 4);
  return times[4];
}

struct Timing {
  int64_t bytes;
  double microseconds;
};

std::string ranks_text(const std::vector<std::vector<int>>& groups, size_t limit) {
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(limit, groups.size()); ++i)
    words.push_back(fmt::format("[{}]", fmt::join(groups[i], ",")));
  if (groups.size() > limit) words.push_back(fmt::format("… ({} groups)", groups.size()));
  return fmt::format("{}", fmt::join(words, " "));
}

void print_json(const parallel::ParallelContext& context, const std::vector<Timing>& timings, double seconds) {
  nlohmann::ordered_json json{{"world_size", context.world().size()},
                              {"backend", context.world().backend()},
                              {"device", context.device().str()},
                              {"ok", true},
                              {"seconds", seconds}};
  for (const auto kind : context.grid().kinds())
    json["groups"][std::string(layout::name(kind))] = context.grid().groups(kind);
  for (const Timing& timing : timings)
    json["all_reduce"].push_back({{"bytes", timing.bytes}, {"microseconds", timing.microseconds}});
  fmt::print("{}\n", json.dump());
}

void print_table(const parallel::ParallelContext& context, const std::vector<Timing>& timings, double seconds) {
  const auto& grid = context.grid();
  const auto& shape = grid.shape();
  fmt::print("{} ranks over {} on {}: tp={} pp={} cp={} dp={}, experts: etp={} ep={} edp={}\n\n", grid.world_size(),
             context.world().backend(), context.device().str(), shape.tp, shape.pp, shape.cp, grid.dp(), grid.etp(),
             shape.ep, grid.edp());
  fmt::print("{:<20} {}\n", "group", "ranks");
  for (const auto kind : grid.kinds()) fmt::print("{:<20} {}\n", layout::name(kind), ranks_text(grid.groups(kind), 8));
  fmt::print(
      "\nall_reduce, all_gather, reduce_scatter, all_to_all, broadcast and send/recv are right in every group.\n");
  for (const Timing& timing : timings)
    fmt::print("all_reduce of {:>8} bytes over all ranks: {:>9.1f} µs\n", timing.bytes, timing.microseconds);
  fmt::print("{:.2f} s in all\n", seconds);
}

}  // namespace

void check_collectives(parallel::ParallelContext& context, bool json) {
  const auto start = std::chrono::steady_clock::now();
  const Group world = context.world().world();
  check_group(world, context.device());
  for (const auto kind : context.grid().kinds())
    if (context.in_group(kind)) check_group(context.group(kind), context.device());
  std::vector<Timing> timings;
  for (int64_t elements : {1, 1 << 20})
    timings.push_back({elements * 4, time_all_reduce(world, elements, context.device())});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (context.rank() != 0) return;
  json ? print_json(context, timings, seconds) : print_table(context, timings, seconds);
}

}  // namespace megalith::cli
