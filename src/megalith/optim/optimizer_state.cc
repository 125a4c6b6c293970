// From flat buffers to blocks of optimizer state.
//
//   bucket of a buffer -> this rank's shard -> at most two blocks (host, device) -> pieces (parameters), runs (groups)
//
// A block is what one call of the update rule covers; a run is what one set of scalars covers. Since padding stays zero
// under every rule, runs extend over it, and a block of one group is a single run.
#include "megalith/optim/optimizer_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"

namespace megalith::optim {

namespace {

// Elements [begin, begin + n) of a buffer, all in one bucket.
struct Range {
  const ParamBuffer* buffer;
  int bucket;
  int64_t begin, n;
  bool on_host;
};

// Returns the ranges that this rank owns, in buffer order, with one additional cut where the offloaded part ends.
std::vector<Range> own_ranges(const std::vector<DistributedDataParallel*>& chunks, double offload_fraction) {
  std::vector<Range> ranges;
  int64_t total = 0;
  for (const DistributedDataParallel* chunk : chunks)
    for (const auto& buffer : chunk->buffers())
      for (int bucket = 0; bucket < static_cast<int>(buffer->layout().buckets.size()); ++bucket) {
        const int64_t n = buffer->layout().shard_numel(bucket);
        ranges.push_back({buffer.get(), bucket, buffer->layout().shard_begin(bucket, buffer->shard_rank()), n, false});
        total += n;
      }
  auto left = static_cast<int64_t>(std::ceil(offload_fraction * static_cast<double>(total)));
  std::vector<Range> result;
  for (Range range : ranges) {
    // Cut at a multiple of the alignment, so that norms do not depend on the fraction.
    const int64_t host = std::min(range.n, (left + kAlignElements - 1) / kAlignElements * kAlignElements);
    left -= std::min(left, host);
    if (host > 0) result.push_back({range.buffer, range.bucket, range.begin, host, true});
    range.begin += host;
    range.n -= host;
    if (range.n > 0) result.push_back(range);
  }
  return result;
}

// Fills block.pieces with the parameters that intersect the range, and block.runs with adjacent ones of equal group.
void add_pieces(StateBlock& block, const Range& range, const GroupOptions& groups) {
  const BufferLayout& layout = range.buffer->layout();
  for (const int item : layout.buckets[range.bucket].items) {
    const BufferLayout::Item& where = layout.items[item];
    const int64_t begin = std::max(where.begin, range.begin), end = std::min(where.end, range.begin + range.n);
    if (begin >= end) continue;
    const nn::Parameter& p = *range.buffer->parameters()[item];
    block.pieces.push_back({.parameter = &p,
                            .begin = begin - range.begin,
                            .end = end - range.begin,
                            .offset = begin - where.begin,
                            .counted = p.spec.replica == 0 && p.spec.role != nn::ParameterRole::kTiedCopy});
    const size_t group = group_of(p, groups);
    if (!block.runs.empty() && block.runs.back().group == group)
      block.runs.back().end = end - range.begin;
    else
      block.runs.push_back({begin - range.begin, end - range.begin, group});
  }
}

// Hands out pieces of one allocation: the allocator would round each of many tensors up to its block size.
class Arena {
 public:
  Arena(int64_t numel, at::TensorOptions options) : all_(at::zeros({numel}, options)) {}
  at::Tensor take(int64_t n) {
    used_ += n;
    return all_.narrow(0, used_ - n, n);
  }

 private:
  at::Tensor all_;
  int64_t used_ = 0;
};

// Whether main needs its own memory: not if the model's parameters are fp32 and on the same device.
bool needs_main(const Range& range) { return range.on_host || range.buffer->params().scalar_type() != at::kFloat; }

// Host state of a GPU run is pinned, for asynchronous copies.
at::TensorOptions state_options(at::Device device, bool on_host) {
  if (!on_host || device.is_cpu()) return at::TensorOptions(at::kFloat).device(device);
  return at::TensorOptions(at::kFloat).device(at::kCPU).pinned_memory(true);
}

}  // namespace

std::vector<StateBlock> make_state(const std::vector<DistributedDataParallel*>& chunks,
                                   const OptimizerSettings& settings) {
  const std::vector<Range> ranges = own_ranges(chunks, settings.offload_fraction);
  std::vector<StateBlock> blocks;
  if (ranges.empty()) return blocks;
  const at::NoGradGuard no_grad;
  const at::Device device = ranges[0].buffer->params().device();
  const auto num_states = static_cast<int64_t>(settings.rule->state_names().size());
  std::vector<Arena> arenas;  // on the device, on the host
  for (const bool on_host : {false, true}) {
    int64_t numel = 0;
    for (const Range& range : ranges)
      if (range.on_host == on_host) numel += range.n * ((needs_main(range) ? 1 : 0) + num_states);
    arenas.emplace_back(numel, state_options(device, on_host));
  }
  for (const Range& range : ranges) {
    StateBlock block;
    Arena& arena = arenas[range.on_host ? 1 : 0];
    const ReduceGroups& groups = range.buffer->groups();
    block.grads = range.buffer->grads().narrow(0, range.begin, range.n);
    block.params = range.buffer->params().narrow(0, range.begin, range.n);
    block.own_main = needs_main(range);
    block.main = block.own_main ? arena.take(range.n) : block.params;
    if (block.own_main) block.main.copy_(block.params);
    for (int64_t i = 0; i < num_states; ++i) block.states.push_back(arena.take(range.n));
    block.on_host = range.on_host;
    block.copies = groups.sharded ? groups.instances.size() : groups.all.size();
    block.copy = groups.sharded ? groups.instances.rank() : groups.all.rank();
    add_pieces(block, range, settings.groups);
    block.buffer = range.buffer;
    block.bucket = range.bucket;
    block.whole_bucket = range.n == range.buffer->layout().buckets[range.bucket].numel() &&
                         std::ranges::all_of(block.pieces, &StatePiece::counted);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace megalith::optim
