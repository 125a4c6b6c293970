// From flat buffers to blocks of optimizer state.
//
//   bucket of a buffer -> this rank's shard -> at most two blocks (host, device) -> pieces (parameters), runs (groups)
//
// A block is what one call of the update rule covers; a run is what one set of scalars covers. Since padding stays zero
// under every rule, runs extend over it, and a block of one group is a single run.
//
// Ranges begin and end at multiples of 64 elements, and so does every parameter. A scale of stored state therefore
// covers elements of one parameter, the same in every layout that does not cut its rows elsewhere.
#include "megalith/optim/optimizer_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/matrix.h"
#include "megalith/optim/fp8_params.h"

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

// Hands out pieces of one allocation: the allocator would round each of many tensors up to its block size. Without
// memory (the default) it only counts the bytes.
class Arena {
 public:
  Arena() = default;
  Arena(int64_t bytes, at::TensorOptions options) : all_(at::zeros({bytes}, options.dtype(at::kByte))) {}
  int64_t used() const { return used_; }
  at::Tensor take(int64_t n, at::ScalarType dtype) {
    constexpr int64_t kAlignment = 64;  // bytes: enough for vector loads
    const int64_t begin = used_, bytes = n * static_cast<int64_t>(c10::elementSize(dtype));
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return all_.defined() ? all_.narrow(0, begin, bytes).view(dtype) : at::Tensor();
  }
  ops::StoredValues take_stored(int64_t n, at::ScalarType format) {
    ops::StoredValues stored{.values = take(n, format)};
    if (ops::has_scales(format)) stored.scales = take(n / ops::kScaleBlock, at::kFloat);
    return stored;
  }

 private:
  at::Tensor all_;
  int64_t used_ = 0;
};

// The state of a range.
struct RangeState {
  ops::StoredValues main;
  std::vector<ops::StoredValues> states;
};

// Whether main needs its own memory: not if the model's parameters are fp32 and on the same device.
bool needs_main(const Range& range) { return range.on_host || range.buffer->params().scalar_type() != at::kFloat; }

// Parameters of a buffer are all matrices or none is (DdpSettings::matrices_apart).
bool holds_matrices(const Range& range) { return nn::is_matrix(range.buffer->parameters()[0]->spec); }

// Host state of a GPU run is pinned, for asynchronous copies.
at::TensorOptions state_options(at::Device device, bool on_host) {
  if (!on_host || device.is_cpu()) return at::TensorOptions().device(device);
  return at::TensorOptions().device(at::kCPU).pinned_memory(true);
}

RangeState take_state(const Range& range, const OptimizerSettings& settings, Arena& arena) {
  RangeState state;
  const at::ScalarType parameter = range.buffer->params().scalar_type();
  if (needs_main(range)) state.main = arena.take_stored(range.n, settings.formats.of_main(parameter));
  for (const std::string& name : settings.state_names(holds_matrices(range)))
    state.states.push_back(arena.take_stored(range.n, settings.formats.of(name)));
  return state;
}

// Elements that are converted at once: 4 MB of fp32.
constexpr int64_t kConvertedElements = int64_t{1} << 20;
static_assert(kAlignElements % ops::kScaleBlock == 0);  // neither parameters nor shards cut a scale

// Calls f(begin, end, fp32 [end - begin]) for pieces of a block, with scratch memory beside its main parameters.
template <typename F>
void in_pieces(const StateBlock& block, const F& f) {
  const int64_t n = block.main.numel();
  const at::Tensor scratch =
      at::empty({std::min(n, kConvertedElements)}, block.main.values.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < n; begin += kConvertedElements) {
    const int64_t end = std::min(n, begin + kConvertedElements);
    f(begin, end, scratch.narrow(0, 0, end - begin));
  }
}

}  // namespace

void main_from_params(const StateBlock& block) {
  if (block.in_fp8()) {
    main_from_loaded(block);
  } else if (block.main.is_direct()) {
    block.main.values.copy_(block.params);
  } else if (block.main.high.defined()) {
    block.main.values.zero_();  // the parameters are the upper halves already
  } else {
    in_pieces(block, [&](int64_t begin, int64_t end, const at::Tensor& numbers) {
      numbers.copy_(block.params.narrow(0, begin, end - begin));
      ops::write_values(numbers, block.main.slice(begin, end));
    });
  }
}

void params_from_main(const StateBlock& block) {
  if (block.in_fp8()) return;
  if (block.main.is_direct()) {
    block.params.copy_(block.main.values);
  } else if (!block.main.high.defined()) {
    in_pieces(block, [&](int64_t begin, int64_t end, const at::Tensor& numbers) {
      ops::read_values(block.main.slice(begin, end), numbers);
      block.params.narrow(0, begin, end - begin).copy_(numbers);
    });
  }
}

std::vector<UpdateBlock> update_blocks(const std::vector<StateBlock>& blocks) {
  std::vector<UpdateBlock> all;
  for (const StateBlock& block : blocks) {
    UpdateBlock& known = all.emplace_back();
    known.numel = block.main.numel();
    for (const StatePiece& piece : block.pieces) known.items.push_back({piece.parameter, piece.begin});
    known.fp32 = block.main.is_fp32() && std::ranges::all_of(block.states, &ops::StoredValues::is_fp32);
    // Main parameters and states are read and written, gradients read. The model's copy is written, and where it is the
    // upper half of main, read as well.
    auto bytes = 2 * static_cast<double>(block.main.bytes()) + static_cast<double>(block.grads.nbytes());
    for (const ops::StoredValues& state : block.states) bytes += 2 * static_cast<double>(state.bytes());
    if (block.own_main) bytes += static_cast<double>(block.params.nbytes()) * (block.main.high.defined() ? 2 : 1);
    known.bytes_per_element = bytes / static_cast<double>(std::max<int64_t>(1, known.numel));
  }
  return all;
}

std::vector<StateBlock> make_state(const std::vector<DistributedDataParallel*>& chunks,
                                   const OptimizerSettings& settings) {
  const std::vector<Range> ranges = own_ranges(chunks, settings.offload_fraction);
  std::vector<StateBlock> blocks;
  if (ranges.empty()) return blocks;
  const at::NoGradGuard no_grad;
  const at::Device device = ranges[0].buffer->params().device();
  std::vector<Arena> arenas;  // on the device, on the host
  for (const bool on_host : {false, true}) {
    Arena counted;
    for (const Range& range : ranges)
      if (range.on_host == on_host) take_state(range, settings, counted);
    arenas.emplace_back(counted.used(), state_options(device, on_host));
  }
  for (const Range& range : ranges) {
    StateBlock block;
    RangeState state = take_state(range, settings, arenas[range.on_host ? 1 : 0]);
    const ReduceGroups& groups = range.buffer->groups();
    block.grads = range.buffer->grads().narrow(0, range.begin, range.n);
    block.params = range.buffer->params().narrow(0, range.begin, range.n);
    block.own_main = needs_main(range);
    block.main = block.own_main ? std::move(state.main) : ops::StoredValues{.values = block.params};
    if (block.own_main && block.main.values.scalar_type() == at::kShort) block.main.high = block.params;
    block.states = std::move(state.states);
    block.on_host = range.on_host;
    block.copies = groups.sharded ? groups.instances.size() : groups.all.size();
    block.copy = groups.sharded ? groups.instances.rank() : groups.all.rank();
    add_pieces(block, range, settings.groups);
    if (block.own_main) main_from_params(block);
    block.buffer = range.buffer;
    block.bucket = range.bucket;
    block.matrices = settings.muon && holds_matrices(range);
    block.whole_bucket = range.n == range.buffer->layout().buckets[range.bucket].numel() &&
                         std::ranges::all_of(block.pieces, &StatePiece::counted);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace megalith::optim
