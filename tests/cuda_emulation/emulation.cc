#include "tests/cuda_emulation/emulation.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/fiber.h"
#include "tests/cuda_emulation/shared_memory.h"

megalith::cuda_emulation::Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace megalith::cuda_emulation {

namespace {

constexpr unsigned kWarp = 32;

enum class State { kReady, kInWarpCall, kAtBlockBarrier, kAtClusterBarrier, kEnded };

struct Thread {
  Fiber fiber;
  State state = State::kReady;
  Index3 block{}, index{};
  unsigned rank = 0;  // index of the block in its cluster
  // In a warp call: what it gives, and gets from lane `source`.
  WarpCall call = WarpCall::kSync;
  unsigned mask = 0, source = 0;
  uint64_t given = 0, got = 0;
  unsigned arrivals = 0, awaited = 0;  // at the cluster's barrier
};

// Memory for the stacks of fibers, each with a page below that may not be touched. Kept for the next grid.
class Stacks {
 public:
  std::span<std::byte> at(size_t i) {
    while (stacks_.size() <= i) {
      void* memory =
          mmap(nullptr, kGuard + kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED || mprotect(memory, kGuard, PROT_NONE) != 0) throw std::bad_alloc();
      stacks_.push_back(static_cast<std::byte*>(memory) + kGuard);
    }
    // Not all at the same distance from a page: they would fight for the same lines of the cache.
    return {stacks_[i], kBytes - i % 61 * 192};
  }

 private:
  static constexpr size_t kGuard = 64 << 10, kBytes = 64 << 10;  // whatever the size of a page
  std::vector<std::byte*> stacks_;
};

// Numbers 0 … n-1 in the order that a stream asks for.
class Sequence {
 public:
  explicit Sequence(const Stream* stream) : stream_(stream == nullptr ? Stream{} : *stream), random_(stream_.seed) {}

  const std::vector<unsigned>& of(unsigned n, std::vector<unsigned>& into) {
    into.resize(n);
    std::iota(into.begin(), into.end(), 0U);
    if (stream_.order == Order::kLastToFirst) std::ranges::reverse(into);
    if (stream_.order == Order::kShuffled) std::ranges::shuffle(into, random_);
    return into;
  }

 private:
  Stream stream_;
  std::minstd_rand random_;
};

// The blocks that run together: a cluster, mostly of one.
class Cluster {
 public:
  Cluster(const Grid& grid, const std::function<void()>& kernel, Stacks& stacks, Sequence& sequence)
      : grid_(grid),
        kernel_(kernel),
        stacks_(stacks),
        sequence_(sequence),
        in_block_(grid.threads.x * grid.threads.y * grid.threads.z) {}

  // Returns what went wrong.
  std::string run(Index3 first);

  Thread& running() { return *running_; }
  SharedMemories& memories() { return *memories_; }
  void call_kernel() const { kernel_(); }
  // The running thread waits in `state`.
  void leave(State state);
  [[noreturn]] void leave_for_good(const char* failure);

 private:
  void prepare(Index3 first);
  void resume(Thread& thread);
  std::span<Thread> block(unsigned rank) { return std::span(threads_).subspan(rank * in_block_, in_block_); }
  // Each returns whether somebody has run: until all of them wait for somebody outside.
  bool run_block(unsigned rank);
  bool run_warp(std::span<Thread> lanes);
  // Each lets those threads continue that have what they waited for, and returns whether there was any.
  bool release_warp(std::span<Thread> lanes);
  bool release_block(std::span<Thread> threads);
  bool release_cluster();
  // Whether every lane of its mask is in the same call, or has ended where that is allowed; fails otherwise.
  bool partners_came(const Thread& waiting, std::span<const Thread> lanes);
  void fail(const Thread& thread, std::string_view why);
  void fail_stuck();

  const Grid& grid_;
  const std::function<void()>& kernel_;
  Stacks& stacks_;
  Sequence& sequence_;
  const unsigned in_block_;
  std::vector<Thread> threads_;
  std::unique_ptr<SharedMemories> memories_;
  Fiber scheduler_;
  Thread* running_ = nullptr;
  std::string failure_;
};

Cluster* current = nullptr;  // for the functions that kernels call

void run_thread() {
  current->call_kernel();
  current->leave_for_good(nullptr);
}

void Cluster::prepare(Index3 first) {
  threads_.assign(size_t{grid_.cluster} * in_block_, {});
  memories_ = std::make_unique<SharedMemories>(grid_.cluster, grid_.shared_bytes);
  for (unsigned i = 0; i < threads_.size(); ++i) {
    Thread& thread = threads_[i];
    const unsigned n = i % in_block_;
    thread.rank = i / in_block_;
    thread.block = {first.x + thread.rank, first.y, first.z};
    thread.index = {n % grid_.threads.x, n / grid_.threads.x % grid_.threads.y, n / grid_.threads.x / grid_.threads.y};
    thread.fiber.prepare(stacks_.at(i), &run_thread);
  }
}

std::string Cluster::run(Index3 first) {
  prepare(first);
  Cluster* const before = std::exchange(current, this);
  std::vector<unsigned> order;
  do {
    for (const unsigned rank : sequence_.of(grid_.cluster, order))
      if (failure_.empty()) run_block(rank);
  } while (failure_.empty() && release_cluster());
  if (failure_.empty()) fail_stuck();
  current = before;
  return failure_;
}

void Cluster::resume(Thread& thread) {
  running_ = &thread;
  threadIdx = thread.index;
  blockIdx = thread.block;
  scheduler_.switch_to(thread.fiber);
}

void Cluster::leave(State state) {
  Thread& self = *running_;
  self.state = state;
  self.fiber.switch_to(scheduler_);
}

void Cluster::leave_for_good(const char* failure) {
  if (failure != nullptr) fail(*running_, failure);
  running_->state = State::kEnded;
  running_->fiber.switch_to(scheduler_, /*last=*/true);
  __builtin_unreachable();
}

bool Cluster::run_block(unsigned rank) {
  memories_->put_in_place(rank);
  const auto threads = block(rank);
  const unsigned warps = (in_block_ + kWarp - 1) / kWarp;
  std::vector<unsigned> order;
  bool ran = false;
  do {
    for (const unsigned warp : sequence_.of(warps, order)) {
      const size_t begin = size_t{warp} * kWarp;
      ran = run_warp(threads.subspan(begin, std::min<size_t>(kWarp, in_block_ - begin))) || ran;
      if (!failure_.empty()) return ran;
    }
  } while (release_block(threads));
  return ran;
}

bool Cluster::run_warp(std::span<Thread> lanes) {
  std::vector<unsigned> order;
  bool ran = false;
  do {
    for (const unsigned lane : sequence_.of(static_cast<unsigned>(lanes.size()), order)) {
      if (lanes[lane].state != State::kReady) continue;
      resume(lanes[lane]);
      ran = true;
      if (!failure_.empty()) return ran;
    }
  } while (release_warp(lanes));
  return ran;
}

bool Cluster::partners_came(const Thread& waiting, std::span<const Thread> lanes) {
  for (unsigned i = 0; i < kWarp; ++i) {
    if ((waiting.mask >> i & 1U) == 0) continue;
    const bool ended = i >= lanes.size() || lanes[i].state == State::kEnded;
    if (ended && waiting.call == WarpCall::kSync) continue;
    const bool there = !ended && lanes[i].state == State::kInWarpCall && lanes[i].call == waiting.call &&
                       lanes[i].mask == waiting.mask;
    if (there) continue;
    fail(waiting, fmt::format("waits in a {} for lane {} of its warp, which {}",
                              waiting.call == WarpCall::kSync ? "__syncwarp" : "shuffle", i,
                              ended                                  ? "has ended"
                              : lanes[i].state == State::kInWarpCall ? "is in another call"
                                                                     : "waits at another barrier"));
    return false;
  }
  return true;
}

bool Cluster::release_warp(std::span<Thread> lanes) {
  const Thread* checked = nullptr;  // its partners are those of every lane in the same call with the same mask
  for (Thread& waiting : lanes) {
    if (waiting.state != State::kInWarpCall) continue;
    const bool same_partners = checked != nullptr && checked->call == waiting.call && checked->mask == waiting.mask;
    if (!same_partners && !partners_came(waiting, lanes)) return false;
    checked = &waiting;
    waiting.got = waiting.call == WarpCall::kSync ? 0 : lanes[waiting.source].given;
  }
  for (Thread& lane : lanes)
    if (lane.state == State::kInWarpCall) lane.state = State::kReady;
  return checked != nullptr;
}

bool Cluster::release_block(std::span<Thread> threads) {
  const auto at_barrier = [](const Thread& t) { return t.state == State::kAtBlockBarrier; };
  const auto passes = [&](const Thread& t) { return at_barrier(t) || t.state == State::kEnded; };
  if (!std::ranges::all_of(threads, passes) || std::ranges::none_of(threads, at_barrier)) return false;
  for (Thread& thread : threads)
    if (at_barrier(thread)) thread.state = State::kReady;
  return true;
}

bool Cluster::release_cluster() {
  unsigned fewest = ~0U;
  for (const Thread& thread : threads_)
    if (thread.state != State::kEnded) fewest = std::min(fewest, thread.arrivals);
  bool released = false;
  for (Thread& thread : threads_) {
    if (thread.state != State::kAtClusterBarrier || fewest < thread.awaited) continue;
    thread.state = State::kReady;
    released = true;
  }
  return released;
}

void Cluster::fail(const Thread& thread, std::string_view why) {
  failure_ = fmt::format("block ({}, {}, {}), thread ({}, {}, {}): {}", thread.block.x, thread.block.y, thread.block.z,
                         thread.index.x, thread.index.y, thread.index.z, why);
}

void Cluster::fail_stuck() {
  for (const Thread& thread : threads_)
    if (thread.state != State::kEnded) return fail(thread, "waits at a barrier to which others will not come");
}

std::string run_blocks(const Grid& grid, const std::function<void()>& kernel) {
  static Stacks stacks;
  Sequence sequence(grid.stream);
  Cluster cluster(grid, kernel, stacks, sequence);
  const unsigned across = grid.blocks.x / grid.cluster;
  std::vector<unsigned> order;
  for (const unsigned i : sequence.of(across * grid.blocks.y * grid.blocks.z, order)) {
    const Index3 first{i % across * grid.cluster, i / across % grid.blocks.y, i / across / grid.blocks.y};
    if (std::string failure = cluster.run(first); !failure.empty()) return failure;
  }
  return {};
}

}  // namespace

std::string run(const Grid& grid, const std::function<void()>& kernel) {
  const uint64_t threads = uint64_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  if (threads == 0 || threads > 1024) return fmt::format("{} threads per block; 1 to 1024 are possible", threads);
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return "no blocks";
  if (grid.blocks.y > 65535 || grid.blocks.z > 65535) return "more than 65535 blocks in y or z";
  if (grid.blocks.x % grid.cluster != 0) return "the blocks are not a whole number of clusters";
  gridDim = grid.blocks;
  blockDim = grid.threads;
  return run_blocks(grid, kernel);
}

void wait_for_block() { current->leave(State::kAtBlockBarrier); }

uint64_t exchange(WarpCall call, unsigned mask, uint64_t value, unsigned source) {
  Thread& self = current->running();
  self.call = call;
  self.mask = mask;
  self.given = value;
  self.source = source;
  current->leave(State::kInWarpCall);
  return self.got;
}

unsigned arrive_at_cluster() { return ++current->running().arrivals; }

void wait_for_cluster(unsigned arrivals) {
  current->running().awaited = arrivals;
  current->leave(State::kAtClusterBarrier);
}

unsigned block_in_cluster() { return current->running().rank; }
void* address_in_block(unsigned block, void* shared) { return current->memories().address_in(block, shared); }
void stop(const char* why) { current->leave_for_good(why); }

}  // namespace megalith::cuda_emulation
