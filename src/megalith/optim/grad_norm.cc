// Norms that do not depend on the order of addition.
//
// Floating-point addition is not associative, so a norm summed rank by rank would change with the number of ranks, and
// with it the clipping factor and every weight after it. Sums are therefore added in an ExactSum, a fixed-point
// accumulator of int64 words that is exact and can be all-reduced as integers in any order. On the CPU its terms are
// sums over aligned blocks of 64 elements, so the result is independent of the layout; on CUDA a term is the fp64 sum
// of one stretch, and the last bits may change with the cuts.
//
// Parameters that several ranks hold (replicated over tp, or tied embeddings) count only where StatePiece::counted.
#include "megalith/optim/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "megalith/ops/update/flat_buffer.h"

namespace megalith::optim {

using layout::GroupKind;

namespace {

// Sums over one rank's elements, then over all ranks of a group.
struct Sums {
  ExactSum squares;
  int64_t zeros = 0;

  // One collective: the words of the exact sum with the number of zeros at the end.
  void all_reduce(const comm::Group& group) {
    if (group.size() == 1) return;
    const ExactSum::Words words = squares.words();
    at::Tensor all = at::empty({static_cast<int64_t>(words.size()) + 1}, at::kLong);
    std::ranges::copy(words, all.mutable_data_ptr<int64_t>());
    all.mutable_data_ptr<int64_t>()[words.size()] = zeros;
    all = all.to(group.device());
    group.all_reduce(all, comm::ReduceOp::kSum, "gradient norm");
    all = all.cpu();
    const auto* data = all.const_data_ptr<int64_t>();
    ExactSum::Words summed;
    std::copy_n(data, summed.size(), summed.begin());
    squares = {};
    squares.add_words(summed);
    zeros = data[summed.size()];
  }
};

// Returns the pieces of a block that count. With `joined`, adjacent pieces on CUDA become one, including the padding
// between them: its zeros do not change a norm (they would change a count of zeros), and each stretch costs a kernel
// launch.
std::vector<StatePiece> stretches(const StateBlock& block, bool joined) {
  std::vector<StatePiece> result;
  for (const StatePiece& piece : block.pieces) {
    if (!piece.counted) continue;
    const bool follows = joined && !result.empty() && block.grads.is_cuda() &&
                         piece.begin - result.back().end < ops::kFlatBlock &&
                         piece.parameter->spec.expert == result.back().parameter->spec.expert;
    if (follows)
      result.back().end = piece.end;
    else
      result.push_back(piece);
  }
  return result;
}

// Sums over all pieces that count. `of` selects the tensor of a block; `known` may return a sum of squares that was
// computed earlier.
//
// With ZeRO-1 every element has one owner within the optimizer instance, so one group covers dense parameters and
// experts. Without it a rank holds whole parameters, and dense ones are split over other ranks (tp, pp) than experts
// (etp, ep, pp): two groups.
template <typename Of, typename Known>
Sums sums_over_model(const std::vector<StateBlock>& blocks, const Of& of, const Known& known, bool sharded,
                     bool count_zeros, const parallel::ParallelContext& context) {
  Sums dense, experts;
  std::vector<at::Tensor> dense_values, expert_values;
  for (const StateBlock& block : blocks) {
    if (const std::optional<ExactSum> squares = known(block); squares && !count_zeros) {
      dense.squares.add(*squares);
      continue;
    }
    for (const StatePiece& piece : stretches(block, !count_zeros)) {
      Sums& sums = piece.parameter->spec.expert && !sharded ? experts : dense;
      const at::Tensor values = of(block).narrow(0, piece.begin, piece.end - piece.begin);
      (piece.parameter->spec.expert && !sharded ? expert_values : dense_values).push_back(values);
      if (count_zeros) sums.zeros += ops::count_zeros(values);
    }
  }
  ops::add_squares(dense_values, dense.squares);
  ops::add_squares(expert_values, experts.squares);
  if (sharded) {  // shards, stages and tp slices together are all ranks of the optimizer instance
    dense.all_reduce(context.group(GroupKind::kIntraDistOpt));
  } else {
    dense.all_reduce(context.group(GroupKind::kTpPp));
    experts.all_reduce(context.group(GroupKind::kTpEpPp));
    dense.squares.add(experts.squares);
    dense.zeros += experts.zeros;
  }
  return dense;
}

// The numbers of a block in a form that can be summed: exact where main is fp32, otherwise as the model has them. Those
// in fp8 have no such form.
at::Tensor summable(const StateBlock& block) {
  if (block.main.is_fp32()) return block.main.values;
  if (!block.in_fp8()) return block.params;
  const at::Tensor wide = at::empty({block.main.numel()}, block.main.values.options().dtype(at::kFloat));
  ops::read_values(block.main, wide);
  return wide;
}

}  // namespace

GradStats gradient_stats(const std::vector<StateBlock>& blocks, bool sharded, bool count_zeros,
                         const parallel::ParallelContext& context) {
  // On a single-rank CUDA run the NaN check has summed the squares already.
  const auto known = [](const StateBlock& block) -> std::optional<ExactSum> {
    if (!block.whole_bucket) return std::nullopt;
    return block.buffer->known_squares(block.bucket);
  };
  const Sums all = sums_over_model(
      blocks, [](const StateBlock& block) { return block.grads; }, known, sharded, count_zeros, context);
  const double squares = all.squares.value();
  return {squares, std::sqrt(squares), all.squares.non_finite(), all.zeros};
}

double parameter_norm(const std::vector<StateBlock>& blocks, bool sharded, const parallel::ParallelContext& context) {
  const auto unknown = [](const StateBlock& /*block*/) { return std::optional<ExactSum>(); };
  const Sums all = sums_over_model(blocks, summable, unknown, sharded, /*count_zeros=*/false, context);
  return std::sqrt(all.squares.value());
}

}  // namespace megalith::optim
