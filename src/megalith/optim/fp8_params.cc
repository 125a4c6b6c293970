// A shard ends anywhere, also within the 128 x 128 numbers of a scale. So every rank finds the largest magnitudes of
// its own numbers, their maximum over the ranks gives all scales to all of them, and each casts its own numbers.
// Weights are read in chunks of whole scales, with zeros in the place of numbers that other ranks own:
//
//   weight [o, i], 128 rows at a time      . . . . # # # # # # #     .  another rank's: zeros
//                                          # # # # # # # # # # #     #  own
//                                          # # # . . . . . . . .
#include "megalith/optim/fp8_params.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "megalith/nn/parameter/fp8_value.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/gemm/fp8_blocks.h"

namespace megalith::optim {

namespace {

using nn::Fp8History;
using ops::Fp8Kind;
using ops::kFp8Block;

// Numbers that are read at once, about: temporaries stay within a few times 8 MB of bf16.
constexpr int64_t kChunkNumbers = int64_t{1} << 22;
// A flat chunk is cast as a matrix of 16 rows, and both sizes must be multiples of 16.
constexpr int64_t kMatrixRows = 16, kMatrixMultiple = 256;

// Returns the place of each weight's first scale in ParamBuffer::inverse_scales().
std::map<const nn::Parameter*, int64_t> first_scales(const ParamBuffer& buffer) {
  std::map<const nn::Parameter*, int64_t> first;
  for (const nn::Parameter* p : buffer.parameters())
    first[p] = p->attached.bytes->inverse_scale.storage_offset() - buffer.inverse_scales().storage_offset();
  return first;
}

// Own numbers of one weight that are read at once.
struct Chunk {
  at::Tensor numbers;         // [n] in the model's dtype, with zeros around the own ones
  int64_t lead = 0;           // zeros before them
  int64_t first_scale = 0;    // in ParamBuffer::inverse_scales()
  int64_t width = 0;          // i of a weight with a scale per 128 x 128 numbers; 0 with one scale per tensor
  at::Tensor own_bytes = {};  // [own numbers], a view of the buffer

  int64_t scales() const { return width == 0 ? 1 : numbers.numel() / (kFp8Block * kFp8Block); }
  // Returns the numbers [blocks of rows, 128, blocks of columns, 128].
  at::Tensor squares() const { return numbers.view({-1, kFp8Block, width / kFp8Block, kFp8Block}); }
  // Returns fp32 [scales()].
  at::Tensor largest() const {
    if (width == 0) return numbers.abs().max().to(at::kFloat).view({1});
    return squares().abs().amax({1, 3}).to(at::kFloat).flatten();
  }
  // Writes own_bytes. scale: fp32 [scales()].
  void cast(const at::Tensor& scale) const {
    at::Tensor bytes;
    if (width == 0) {
      bytes = ops::to_fp8(numbers.view({kMatrixRows, -1}), {.columns = false, .scale = scale}).rows;
    } else {
      const double reach = ops::reach_of(Fp8Kind::kE4m3);
      const at::Tensor factors = scale.view({-1, 1, width / kFp8Block, 1});
      bytes = (squares() * factors).clamp_(-reach, reach).to(ops::dtype_of(Fp8Kind::kE4m3));
    }
    own_bytes.copy_(bytes.view(at::kByte).flatten().narrow(0, lead, own_bytes.numel()));
  }
};

// Returns elements [begin, begin + n) of a block's main parameters in fp32.
at::Tensor main_numbers(const StateBlock& block, int64_t begin, int64_t n) {
  if (block.main.is_direct()) return block.main.values.narrow(0, begin, n);
  const int64_t first = begin / ops::kScaleBlock * ops::kScaleBlock, end = round_up(begin + n, ops::kScaleBlock);
  const at::Tensor wide = at::empty({end - first}, block.main.values.options().dtype(at::kFloat));
  ops::read_values(block.main.slice(first, end), wide);
  return wide.narrow(0, begin - first, n);
}

// Calls f with every chunk of a piece. `first_scale` is that of its weight.
template <typename F>
void for_chunks(const StateBlock& block, const StatePiece& piece, int64_t first_scale, const F& f) {
  const nn::Fp8Value& bytes = *piece.parameter->attached.bytes;
  const int64_t width = bytes.inverse_scale.dim() == 2 ? piece.parameter->value.size(1) : 0;
  const int64_t unit = width == 0 ? kMatrixMultiple : kFp8Block * width;  // numbers that are not to be cut
  const int64_t most = std::max<int64_t>(1, kChunkNumbers / unit) * unit;
  const int64_t end = piece.offset + piece.end - piece.begin;
  for (int64_t from = piece.offset; from < end;) {  // elements of the weight
    const int64_t whole = width == 0 ? from : from / unit * unit, to = std::min(end, whole + most);
    const int64_t at = piece.begin + from - piece.offset;  // in the block
    Chunk chunk{.numbers = at::zeros({round_up(to - whole, unit)}, block.params.options().dtype(bytes.dtype)),
                .lead = from - whole,
                .first_scale = first_scale + (width == 0 ? 0 : whole / (kFp8Block * kFp8Block)),
                .width = width,
                .own_bytes = block.params.view(at::kByte).narrow(0, at, to - from)};
    chunk.numbers.narrow(0, chunk.lead, to - from).copy_(main_numbers(block, at, to - from));
    f(chunk);
    from = to;
  }
}

// Whether the scale of a weight is known before its numbers are.
bool has_scale(const nn::Parameter& parameter) { return parameter.attached.fp8 && !parameter.attached.fp8->fresh; }

// Returns the scales of all weights of a buffer. `largest` are this rank's magnitudes and, on return, those that the
// scales are made of.
at::Tensor scales_of(const ParamBuffer& buffer, const at::Tensor& largest) {
  if (!std::ranges::all_of(buffer.parameters(), [](const nn::Parameter* p) { return has_scale(*p); }))
    buffer.groups().shards.all_reduce(largest, comm::ReduceOp::kMax, "largest magnitudes of parameters in fp8");
  const at::Tensor scales = buffer.fp8()->scaling == ops::Fp8Scaling::kBlocks
                                ? ops::fp8_block_scale(largest, Fp8Kind::kE4m3)
                                : ops::fp8_scale(largest, Fp8Kind::kE4m3);
  for (const auto& [parameter, first] : first_scales(buffer)) {
    if (!parameter->attached.fp8) continue;
    const Fp8History& history = *parameter->attached.fp8;
    if (has_scale(*parameter)) scales.narrow(0, first, 1).copy_(history.state[Fp8History::kWeight].narrow(0, 0, 1));
    history.seen.narrow(0, Fp8History::kWeight, 1).copy_(largest.narrow(0, first, 1));
  }
  return scales;
}

void cast_buffer(const ParamBuffer& buffer, const std::vector<const StateBlock*>& blocks) {
  const auto first = first_scales(buffer);
  const auto for_all = [&](const auto& f) {
    for (const StateBlock* block : blocks)
      for (const StatePiece& piece : block->pieces) for_chunks(*block, piece, first.at(piece.parameter), f);
  };
  const at::Tensor largest = at::zeros_like(buffer.inverse_scales());
  for_all([&](const Chunk& chunk) {
    const at::Tensor known = largest.narrow(0, chunk.first_scale, chunk.scales());
    known.copy_(at::maximum(known, chunk.largest()));
  });
  const at::Tensor scales = scales_of(buffer, largest);
  buffer.inverse_scales().copy_(scales.reciprocal());
  for_all([&](const Chunk& chunk) { chunk.cast(scales.narrow(0, chunk.first_scale, chunk.scales())); });
  for (const nn::Parameter* p : buffer.parameters()) p->attached.bytes->loaded.reset();
}

}  // namespace

void main_from_loaded(const StateBlock& block) {
  for (const StatePiece& piece : block.pieces) {
    const at::Tensor& loaded = piece.parameter->attached.bytes->loaded;
    if (!loaded.defined()) continue;
    const int64_t n = piece.end - piece.begin;
    const at::Tensor numbers = loaded.contiguous().flatten().narrow(0, piece.offset, n);
    if (block.main.is_direct()) {
      block.main.values.narrow(0, piece.begin, n).copy_(numbers);
      continue;
    }
    // A piece begins at a multiple of a scale's numbers; padding follows it up to the next.
    const int64_t end = round_up(piece.end, ops::kScaleBlock);
    const at::Tensor wide = at::zeros({end - piece.begin}, block.main.values.options().dtype(at::kFloat));
    wide.narrow(0, 0, n).copy_(numbers);
    ops::write_values(wide, block.main.slice(piece.begin, end));
  }
}

void cast_fp8_params(const std::vector<StateBlock>& blocks) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<const ParamBuffer*, std::vector<const StateBlock*>>> buffers;
  for (const StateBlock& block : blocks) {
    if (!block.in_fp8()) continue;
    if (buffers.empty() || buffers.back().first != block.buffer) buffers.push_back({block.buffer, {}});
    buffers.back().second.push_back(&block);
  }
  for (const auto& [buffer, own] : buffers) cast_buffer(*buffer, own);
}

}  // namespace megalith::optim
