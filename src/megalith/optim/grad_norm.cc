// Norms that do not depend on the order of addition, in a form that travels with other numbers.
//
// Floating-point addition is not associative, so a norm summed rank by rank would change with the number of ranks, and
// with it the clipping factor and every weight after it. On the CPU sums are therefore added in an ExactSum, a
// fixed-point accumulator whose words are all-reduced in any order. Its terms are sums over aligned blocks of 64
// elements, so the result is independent of the layout. A word is below 2^32, so fp64 adds the words of up to 2^21
// ranks exactly. On CUDA the only term is an fp64 sum, and the last bits may change with the cuts:
//
//   terms on the CPU    | 68 digits | number of NaNs and infinities | zeros |
//   terms on a device   | sum of squares                            | zeros |
//
// All ranks of the world add up their terms, so each element must be counted by exactly one of them. Parameters that
// several ranks of a replica hold (replicated over tp, or tied embeddings) count where StatePiece::counted; among
// replicas, which hold the same gradients after the reduction, the first one counts.
#include "megalith/optim/grad_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <tuple>

#include "megalith/ops/kernel/host_values.h"
#include "megalith/ops/update/flat_buffer.h"

namespace megalith::optim {

using layout::GroupKind;

namespace {

constexpr int64_t kWords = std::tuple_size_v<ExactSum::Words>;

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

at::Tensor terms_on_cpu(const std::vector<at::Tensor>& flats, bool count_zeros) {
  ExactSum squares;
  ops::add_squares(flats, squares);
  const ExactSum::Words words = squares.words();
  const at::Tensor terms = at::zeros({kWords + 1}, at::kDouble);
  auto* out = terms.mutable_data_ptr<double>();
  for (int64_t i = 0; i < kWords; ++i) out[i] = static_cast<double>(words[static_cast<size_t>(i)]);
  if (count_zeros)
    for (const at::Tensor& flat : flats) out[kWords] += static_cast<double>(ops::count_zeros(flat));
  return terms;
}

// `known` are sums of squares of further elements, one fp64 number each, at least one.
at::Tensor terms_on_device(const std::vector<at::Tensor>& flats, const std::vector<at::Tensor>& known,
                           bool count_zeros) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& sum : known) sums.push_back(sum.view({1}));
  if (!flats.empty()) sums.push_back(ops::sums_of_squares(flats));
  const at::Tensor terms = at::zeros({2}, sums.front().options());
  terms.select(0, 0).copy_(at::cat(sums).sum());
  if (count_zeros)
    for (const at::Tensor& flat : flats) terms.select(0, 1).add_(at::count_nonzero(flat).neg_().add_(flat.numel()));
  return terms;
}

// `of` selects the tensor of a block. With `known`, the sums of squares that the NaN check of a single CUDA rank has
// made are used instead of a pass over the gradients.
template <typename Of>
at::Tensor terms_over_model(const std::vector<StateBlock>& blocks, const Of& of, bool known, bool sharded,
                            bool count_zeros, const parallel::ParallelContext& context) {
  std::vector<at::Tensor> flats, known_squares;
  for (const StateBlock& block : blocks) {
    if (known && block.whole_bucket && !count_zeros) {
      if (const at::Tensor squares = block.buffer->squares_on_device(block.bucket); squares.defined()) {
        known_squares.push_back(squares);
        continue;
      }
    }
    for (const StatePiece& piece : stretches(block, !count_zeros))
      if (counts_in_model(piece.parameter->spec.expert, sharded, context))
        flats.push_back(of(block).narrow(0, piece.begin, piece.end - piece.begin));
  }
  if (context.device().is_cpu()) return terms_on_cpu(flats, count_zeros);
  // Main parameters whose state was offloaded are in the host's memory and are summed there.
  ExactSum on_host;
  std::erase_if(flats, [&on_host](const at::Tensor& flat) {
    if (flat.is_cpu()) ops::add_squares(flat, on_host);
    return flat.is_cpu();
  });
  known_squares.push_back(at::full({}, on_host.value(), at::TensorOptions(at::kDouble).device(context.device())));
  return terms_on_device(flats, known_squares, count_zeros);
}

// Adds up the terms of all ranks and reads them.
GradStats read_stats(const at::Tensor& terms, const parallel::ParallelContext& context, const char* label) {
  context.world().world().all_reduce(terms, comm::ReduceOp::kSum, label);
  const ops::HostTensor read(terms);
  return stats_of({read.value().const_data_ptr<double>(), static_cast<size_t>(terms.numel())});
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

// With ZeRO-1 every element has one owner within the optimizer instance, so the ranks of the first instance count.
// Without it a rank holds whole parameters, and the first of its replicas counts; experts have other replicas than
// dense parameters.
bool counts_in_model(bool expert, bool sharded, const parallel::ParallelContext& context) {
  if (sharded) return context.group(GroupKind::kInterEdp).rank() == 0;
  return (expert ? context.place().edp_rank : context.place().dp_cp_rank) == 0;
}

at::Tensor norm_terms(const std::vector<StateBlock>& blocks, bool sharded, bool count_zeros,
                      const parallel::ParallelContext& context) {
  const at::NoGradGuard no_grad;
  return terms_over_model(
      blocks, [](const StateBlock& block) { return block.grads; }, /*known=*/true, sharded, count_zeros, context);
}

at::Tensor squares_of(const at::Tensor& terms) {
  if (!terms.is_cpu()) return terms.select(0, 0);
  const double squares = stats_of({terms.const_data_ptr<double>(), static_cast<size_t>(terms.numel())}).squares;
  return at::scalar_tensor(squares, at::kDouble);
}

GradStats stats_of(std::span<const double> terms) {
  GradStats stats{.zeros = static_cast<int64_t>(terms.back())};
  if (std::ssize(terms) == 2) {
    stats.non_finite = !std::isfinite(terms[0]);
    stats.squares = stats.non_finite ? std::nan("") : terms[0];
  } else {
    ExactSum::Words words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<int64_t>(terms[i]);
    ExactSum sum;
    sum.add_words(words);
    stats.non_finite = sum.non_finite();
    stats.squares = sum.value();
  }
  stats.norm = std::sqrt(stats.squares);
  return stats;
}

GradStats gradient_stats(const std::vector<StateBlock>& blocks, bool sharded, bool count_zeros,
                         const parallel::ParallelContext& context) {
  return read_stats(norm_terms(blocks, sharded, count_zeros, context), context, "gradient norm");
}

double parameter_norm(const std::vector<StateBlock>& blocks, bool sharded, const parallel::ParallelContext& context) {
  const at::NoGradGuard no_grad;
  const at::Tensor terms = terms_over_model(blocks, summable, /*known=*/false, sharded, /*count_zeros=*/false, context);
  return read_stats(terms, context, "parameter norm").norm;
}

}  // namespace megalith::optim
