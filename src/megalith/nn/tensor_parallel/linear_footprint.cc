// Memory of linear layers, in the order of linear_function.cc: collectives hold their buffers until they are waited
// for, and tensors that only the weight gradient still needs stay longer if the schedule defers it.
//
//   ColumnFootprint::forward    ColumnLinear::forward: gather x (SP), product, drop the gathered x
//   ColumnFootprint::backward   ColumnLinear::backward: start_gathering, dy W, start_reducing, grad_weights, wait
//   RowFootprint::forward       RowLinear::forward: product, sum over the ranks
//   RowFootprint::backward      RowLinear::backward: gather dy (SP), grad_weights (with a recomputed x), dx; or, in
//                               slices, gather dy and compute dx, then grad_weights from a reordered x. Held
//                               gradients keep dy, and the input of grad_weights
#include "megalith/nn/tensor_parallel/linear_footprint.h"

#include "megalith/nn/parameter/low_rank_footprint.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/nn/tensor_parallel/quantized_slices.h"
#include "megalith/nn/tensor_parallel/sliced_product.h"

namespace megalith::nn {

namespace {

// Returns the outputs of a fused weight whose rows are split over `ranks`, as its update sees them.
std::vector<UpdatedPart> updated_parts(const std::vector<OutputPart>& out, int64_t ranks) {
  std::vector<UpdatedPart> parts;
  for (const OutputPart& part : out)
    parts.push_back({part.name, (part.padded_rows > 0 ? part.padded_rows : part.rows) / ranks});
  return parts;
}

// The dimension of a weight that is split over tensor-parallel ranks.
enum class Cut { kNone, kRows, kColumns };

// Records a weight [rows of all parts, in], its bias and its update.
UpdateSize add_weight(const FootprintScope& scope, std::vector<UpdatedPart> parts, int64_t in, bool bias, Cut cut) {
  const int64_t ranks = cut == Cut::kNone ? 1 : static_cast<int64_t>(scope.rank().tp);
  int64_t rows = 0;
  MatrixWork work;
  for (const UpdatedPart& part : parts) {
    rows += part.rows;
    work +=
        cut == Cut::kColumns ? MatrixWork::of_columns(part.rows, in, ranks) : MatrixWork::of_rows(part.rows, in, ranks);
  }
  scope.add({.numel = rows * in,
             .in_fp8 = applies_fp8(scope.rank().fp8, rows, in),
             .matrices = work,
             .quantized_rows = scope.keeps_quantized() ? rows : 0});
  if (bias) scope.add_bias(parts);
  return scope.add_update(std::move(parts), in);
}

// Returns the columns of the output on one of `ranks`.
double columns(const std::vector<OutputPart>& out, int64_t ranks) {
  int64_t rows = 0;
  for (const UpdatedPart& part : updated_parts(out, ranks)) rows += part.rows;
  return static_cast<double>(rows);
}

// Returns the slices in which tokens travel beside a product with so many results per token; see slices_for in
// linear_function.cc.
int64_t slices_of(const RankSizes& rank, const UpdateSize& update, bool quantized, double columns) {
  if (!rank.tp_overlap || !rank.split_tokens || rank.fp8 || quantized || update.any()) return 1;
  return slice_count(static_cast<int64_t>(rank.s), rank.tp, static_cast<int64_t>(columns), rank.machinery.cuda,
                     rank.tp_slices);
}

// Returns the tokens whose dropout mask a column layer keeps: those of its share, or all of them for an update with
// magnitudes.
double mask_tokens(const RankSizes& rank, const UpdateSize& update) { return update.magnitudes > 0 ? rank.t : rank.s; }

// Returns the bytes of a slice of `count` rows or columns of `size` numbers each, in which a product reads a weight
// that is kept in 4 or 8 bits (quantized_slices.h).
double slice_bytes(const RankSizes& rank, double count, double size) {
  const auto whole = static_cast<int64_t>(count), each = static_cast<int64_t>(size);
  return static_cast<double>(quantized_slice(whole, each) * each) * rank.bytes;
}

}  // namespace

ColumnFootprint::ColumnFootprint(const FootprintScope& scope, int64_t in, const std::vector<OutputPart>& out, bool bias)
    : in_(static_cast<double>(in)),
      out_(columns(out, scope.rank().tp)),
      quantized_(scope.keeps_quantized()),
      update_(add_weight(scope, updated_parts(out, scope.rank().tp), in, bias, Cut::kRows)) {}

void ColumnFootprint::forward(LayerWalk& walk, bool keep) const {
  const RankSizes& rank = walk.rank();
  const double gathered = rank.split_tokens ? rank.t * in_ * rank.bytes : 0;
  walk.take(gathered, Use::kCommunication);
  walk.take(rank.t * out_ * rank.bytes);
  if (quantized_) walk.touch(slice_bytes(rank, out_, in_), Use::kWorkspace);
  walk.give(gathered, Use::kCommunication);
  update_forward(walk, update_, rank.t, mask_tokens(rank, update_) * in_ * rank.bytes, keep);
}

void ColumnFootprint::backward(LayerWalk& walk, bool wanted) const {
  const RankSizes& rank = walk.rank();
  const double whole_bytes = rank.t * in_ * rank.bytes, share_bytes = rank.s * in_ * rank.bytes;
  // x is gathered again for the weight gradient, unless that is deferred or the weight is frozen.
  const bool gathers = rank.split_tokens && !walk.defers() && !rank.frozen;
  take_hidden_grad(walk, update_, rank.t);
  if (gathers) walk.take(whole_bytes, Use::kCommunication);
  if (wanted) {
    walk.take(whole_bytes);
    if (quantized_) walk.touch(slice_bytes(rank, in_, out_), Use::kWorkspace);
    if (rank.split_tokens) {
      walk.take(share_bytes, Use::kCommunication);
      walk.reduce_scatter(whole_bytes);
    } else {
      walk.all_reduce(whole_bytes);
    }
  }
  const bool holds = walk.covers() && !is_head_ && !update_.any();
  const double dy_bytes = rank.t * out_ * rank.bytes;
  if (holds) {
    walk.hold({.elements = out_ * in_, .activations = dy_bytes, .communication = whole_bytes}, in_);
    if (wanted)
      walk.cover(in_);
    else
      walk.cover_nothing();
  } else {
    walk.weight_grad(out_ * in_);
    if (gathers) walk.give(whole_bytes, Use::kCommunication);
  }
  // The reduction has arrived: the partial dx of all tokens goes, and the share counts as an activation from here on.
  if (wanted && rank.split_tokens) {
    walk.give(whole_bytes);
    walk.give(share_bytes, Use::kCommunication);
    walk.take(share_bytes);
  }
  give_hidden(walk, update_, rank.t, mask_tokens(rank, update_) * in_ * rank.bytes);
  const double share = keeps_input(rank) ? share_bytes : 0;
  if (holds)
    walk.give(share);
  else
    walk.give_or_defer(dy_bytes + share);
}

bool ColumnFootprint::multiplies_slices(const RankSizes& rank) const {
  return slices_of(rank, update_, quantized_, out_) > 1;
}

RowFootprint::RowFootprint(const FootprintScope& scope, const std::string& name, int64_t in, int64_t out, bool bias)
    : in_(static_cast<double>(in / scope.rank().tp)),
      out_(static_cast<double>(out)),
      quantized_(scope.keeps_quantized()),
      update_(add_weight(scope, {{name, out}}, in / scope.rank().tp, bias, Cut::kColumns)) {}

void RowFootprint::forward(LayerWalk& walk, bool keep) const {
  const RankSizes& rank = walk.rank();
  walk.sum_over_ranks();
  // Beside the partial sums of all tokens, which the sum has replaced by a share of them.
  if (quantized_)
    walk.touch(slice_bytes(rank, out_, in_) + (rank.split_tokens ? rank.whole() - rank.stream() : 0), Use::kWorkspace);
  update_forward(walk, update_, rank.t, rank.t * in_ * rank.bytes, keep);
}

void RowFootprint::backward(LayerWalk& walk, const RowInput& input) const {
  const RankSizes& rank = walk.rank();
  const double in_bytes = rank.t * in_ * rank.bytes, remade = walk.defers() ? 0 : input.made_again;
  const bool holds = walk.covers() && !update_.any(), covered = holds && walk.holds();
  const bool sliced = gathers_in_slices(rank) && !covered;
  if (rank.split_tokens) walk.take(rank.whole(), Use::kCommunication);
  if (holds) {
    if (covered) walk.cover(out_);
    walk.take(in_bytes);
    return walk.hold({.elements = in_ * out_,
                      .activations = input.give ? in_bytes : 0,
                      .communication = rank.whole(),
                      .workspace = input.made_again + (sliced && !input.in_slices ? in_bytes : 0)},
                     out_);
  }
  if (sliced) walk.take(in_bytes);  // dx is computed beside the gathers, before the weight gradient
  walk.take(remade, Use::kWorkspace);
  if (sliced && !rank.frozen && !walk.defers() && !input.in_slices)
    walk.touch(in_bytes, Use::kWorkspace);  // x in the order of slices
  walk.weight_grad(in_ * out_);
  take_hidden_grad(walk, update_, rank.t);
  walk.give(remade, Use::kWorkspace);
  if (!sliced) walk.take(in_bytes);
  if (quantized_) walk.touch(slice_bytes(rank, in_, out_), Use::kWorkspace);
  give_hidden(walk, update_, rank.t, in_bytes);
  // A deferred weight gradient holds its input and dy; without sequence parallelism dy is the stream's own gradient.
  if (walk.defers()) {
    if (input.give) walk.defer(in_bytes);
    if (!rank.split_tokens) return walk.hold_stream_grad();
    // The gathered gradient of the stream is held until the weight gradient is computed.
    walk.give(rank.whole(), Use::kCommunication);
    walk.take(rank.whole());
    return walk.defer(rank.whole());
  }
  if (rank.split_tokens) walk.give(rank.whole(), Use::kCommunication);
  if (input.give) walk.give(in_bytes);
}

bool RowFootprint::multiplies_slices(const RankSizes& rank) const {
  return slices_of(rank, update_, quantized_, out_) > 1;
}

bool RowFootprint::gathers_in_slices(const RankSizes& rank) const {
  return slices_of(rank, update_, quantized_, in_) > 1;
}

ReplicatedFootprint::ReplicatedFootprint(const FootprintScope& scope, int64_t in, const std::vector<OutputPart>& out,
                                         bool bias)
    : out_(columns(out, 1)) {
  add_weight(scope, updated_parts(out, 1), in, bias, Cut::kNone);
}

}  // namespace megalith::nn
