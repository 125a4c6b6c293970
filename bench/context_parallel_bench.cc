// Measures causal attention over context-parallel ranks against the same tokens on one rank, forward and backward.
// Ranks are threads of one core each. Prints one JSON line per case:
//
//   context_parallel_bench [--tokens N] [--rounds N]
//
//   single_ms, ranks_ms         median of one rank, and of `cp` ranks
//   overhead                    ranks_ms · min(cp, cores) / single_ms - 1: 0 if no time is lost
//   single_bytes, rank_bytes    peak memory of attention on a rank, beyond its arguments
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/peer_process.h"
#include "megalith/base/error.h"
#include "megalith/nn/context_parallel/context_attention.h"
#include "megalith/nn/context_parallel/slice.h"
#include "tests/support/memory_meter.h"

namespace megalith {
namespace {

constexpr int64_t kHeads = 8, kKvHeads = 2, kHeadDim = 64;

struct Measured {
  double ms = 0;
  int64_t bytes = 0;
};

// Runs one forward and backward pass on this rank and returns its peak memory. With equal keys, scores cannot depend on
// the query, so its gradient must vanish.
int64_t pass(const ops::SequenceLayout& slice, const nn::ContextParallel& cp) {
  const auto leaf = [&](int64_t heads) { return at::ones({slice.tokens(), heads, kHeadDim}).requires_grad_(); };
  const at::Tensor q = leaf(kHeads), k = leaf(kKvHeads), v = leaf(kKvHeads), grad = at::ones_like(q);
  const testing::MemoryMeter meter;
  nn::context_attention(q, k, v, slice, {}, cp).backward(grad);
  const int64_t peak = meter.peak();
  check(q.grad().abs().max().item<double>() < 1e-3, "all keys are alike, but the gradient of a query is not zero");
  return peak;
}

Measured measure(int64_t tokens, int ranks, nn::ContextMode mode, int rounds) {
  const auto worlds = comm::World::in_process(ranks);
  const ops::SequenceLayout whole = ops::SequenceLayout::dense(1, tokens);
  Measured result;
  const auto run = [&](int rank) {
    comm::World& world = *worlds[static_cast<size_t>(rank)];
    const parallel::ParallelContext context(world, layout::RankGrid({.world_size = ranks, .cp = ranks}));
    const nn::ContextParallel cp = nn::context_parallel(context, mode);
    const ops::SequenceLayout slice = nn::slice_layout(whole, rank, ranks);
    std::vector<double> times;
    for (int round = 0; round < rounds + 1; ++round) {  // the first one warms up
      world.world().barrier();
      const auto start = std::chrono::steady_clock::now();
      const int64_t bytes = pass(slice, cp);
      world.world().barrier();
      times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
      if (rank == 0) result.bytes = std::max(result.bytes, bytes);
    }
    times.erase(times.begin());
    if (rank == 0) result.ms = bench::median(times);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  return result;
}

void report(int64_t tokens, int rounds) {
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const Measured single = measure(tokens, 1, nn::ContextMode::kRing, rounds);
  for (const auto& [name, mode] :
       {std::pair("p2p", nn::ContextMode::kRing), std::pair("all_gather", nn::ContextMode::kAllGather),
        std::pair("a2a", nn::ContextMode::kAllToAll)})
    for (const int cp : {2, 4}) {
      const Measured ranks = measure(tokens, cp, mode, rounds);
      fmt::print("{}\n", nlohmann::ordered_json{{"bench", "context_parallel"},
                                                {"cp_comm_type", name},
                                                {"cp", cp},
                                                {"tokens", tokens},
                                                {"single_ms", single.ms},
                                                {"ranks_ms", ranks.ms},
                                                {"overhead", ranks.ms * std::min(cp, cores) / single.ms - 1},
                                                {"single_bytes", single.bytes},
                                                {"rank_bytes", ranks.bytes}}
                             .dump());
      std::fflush(stdout);
    }
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  int64_t tokens = 8192;
  int rounds = 5;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--tokens") tokens = std::stoll(argv[i + 1]);
    if (name == "--rounds") rounds = std::stoi(argv[i + 1]);
  }
  at::set_num_threads(1);
  megalith::report(tokens, rounds);
}
