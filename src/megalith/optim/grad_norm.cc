#include "megalith/optim/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "megalith/ops/update/flat.h"

namespace megalith::optim {

using layout::GroupKind;

namespace {

struct Sums {
  ExactSum squares;
  int64_t zeros = 0;

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

// Pieces of a block that count. With `joined`, on CUDA, neighbours go together, with the zeros between them.
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

// Over all pieces that count of the tensor that `of` takes of a block; `known` may give a block's sum of squares.
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
  if (sharded) {  // shards, stages and slices: together all ranks of the optimizer instance
    dense.all_reduce(context.group(GroupKind::kIntraDistOpt));
  } else {
    dense.all_reduce(context.group(GroupKind::kTpPp));
    experts.all_reduce(context.group(GroupKind::kTpEpPp));
    dense.squares.add(experts.squares);
    dense.zeros += experts.zeros;
  }
  return dense;
}

}  // namespace

GradStats gradient_stats(const std::vector<StateBlock>& blocks, bool sharded, bool count_zeros,
                         const parallel::ParallelContext& context) {
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
  const Sums all = sums_over_model(
      blocks, [](const StateBlock& block) { return block.main; }, unknown, sharded, /*count_zeros=*/false, context);
  return std::sqrt(all.squares.value());
}

}  // namespace megalith::optim
