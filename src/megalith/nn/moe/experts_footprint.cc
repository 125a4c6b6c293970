// Memory and work of the experts of a rank, with tokens spread evenly over all experts. Mirrors experts.cc and the
// dispatchers. Rows are those that arrive at this rank's experts.
//
//   forward    dispatch(), the up projection, the activation, the down projection, combine()
//   backward   the same in reverse, in the three sections below
//
// Use::kCommunication has what a collective holds beside the tensors of the layer: rows in flight, or gathered tokens.
#include "megalith/nn/moe/experts_footprint.h"

#include <cmath>

#include "megalith/nn/parameter/low_rank_footprint.h"

namespace megalith::nn {

namespace {

// Launches per direction that a GPU waits for when the host has read the counts of a layer.
constexpr double kLaunchedLate = 100;

// Returns the rows per rank under a balanced load: all choices, or what the capacity allows.
double rows_of_rank(const RouterShape& router, const RankSizes& rank) {
  const auto etp = static_cast<double>(rank.etp), experts = static_cast<double>(router.experts);
  const double chosen = rank.s * static_cast<double>(router.topk);
  if (router.capacity_factor && (router.pad_to_capacity || *router.capacity_factor < 1))
    return experts * etp * std::ceil(chosen / experts * *router.capacity_factor);
  return chosen * etp;
}

}  // namespace

ExpertsFootprint::ExpertsFootprint(const FootprintScope& scope, const MoeShape& shape, const MoeOptions& options)
    : rank_(scope.rank()),
      experts_(static_cast<double>(shape.router.experts) / static_cast<double>(rank_.ep)),
      chosen_(rank_.s * static_cast<double>(shape.router.topk) * static_cast<double>(rank_.etp)),
      rows_(rows_of_rank(shape.router, rank_)),
      width_(static_cast<double>(shape.width) / static_cast<double>(rank_.etp)),
      up_(width_ * (shape.gated ? 2 : 1)),
      members_(static_cast<double>(rank_.ep * rank_.etp)),
      travels_(members_ > 1),
      sorted_(shape.router.experts / rank_.ep > 1),
      gathers_(options.dispatcher == MoeOptions::Dispatcher::kAllGather),
      // knows_sizes(): the rows of ranks that share a micro-batch are padded.
      reads_counts_(travels_ && (gathers_ || !shape.router.capacity_factor || !shape.router.pad_to_capacity ||
                                 rank_.tp * rank_.cp % (rank_.ep * rank_.etp) != 0)),
      local_(rank_.machinery.cuda && !travels_ && !shape.router.capacity_factor),
      remakes_activation_(options.recompute_activation),
      fp8_(rank_.fp8 && options.fp8) {
  const int64_t count = shape.router.experts / rank_.ep, width = shape.width / rank_.etp;
  const int64_t ups = shape.gated ? 2 : 1, ranks = rank_.etp;
  scope.add({.numel = count * ups * width * shape.hidden,
             .expert = true,
             .matrices = MatrixWork::of_rows(width, shape.hidden, ranks, count * ups)});
  scope.add({.numel = count * shape.hidden * width,
             .expert = true,
             .matrices = MatrixWork::of_columns(shape.hidden, width, ranks, count)});
  // The experts' weights are fused, and an update treats them alike: it looks only at the name of the first.
  std::vector<UpdatedPart> parts;
  if (shape.gated) parts.push_back({"0.gate", width});
  parts.push_back({"0.up", width});
  up_update_ = scope.add_update(std::move(parts), shape.hidden, count, /*expert=*/true);
  down_update_ = scope.add_update({{"0.down", shape.hidden}}, width, count, /*expert=*/true);
}

// A frozen product without an update does not read its input in backward.
bool ExpertsFootprint::keeps_input(const UpdateSize& update) const { return !rank_.frozen || update.any(); }

double ExpertsFootprint::fp8_bytes(double out, double in) const {
  if (!fp8_ || !ops::fits_fp8(static_cast<int64_t>(out), static_cast<int64_t>(in))) return 0;
  return (rows_ + experts_ * out) * in;
}

void ExpertsFootprint::exchange(LayerWalk& walk) const {
  walk.take(row_bytes(), Use::kCommunication);
  walk.cut();
  walk.give(row_bytes(), Use::kCommunication);
}

void ExpertsFootprint::forward(LayerWalk& walk, bool keep) const {
  const double rows = row_bytes(), b = rows_ * rank_.bytes, all = gathered_bytes(), stream = rank_.stream();
  if (gathers_ && travels_) walk.take(all, Use::kCommunication);
  walk.take(rows);
  if (gathers_ && travels_) walk.give(all, Use::kCommunication);
  if (!gathers_ && travels_) {
    exchange(walk);  // received rows coexist with those sent, which are then freed
    if (sorted_) walk.touch(rows);
  }
  walk.take(b * up_);
  walk.touch(fp8_bytes(up_, rank_.h), Use::kWorkspace);
  update_forward(walk, up_update_, rows_, rows, keep);
  walk.take(b * width_);
  walk.take(rows);
  walk.touch(fp8_bytes(rank_.h, width_), Use::kWorkspace);
  update_forward(walk, down_update_, rows_, b * width_, keep);
  // combine(): sums over all gathered tokens and a reduce-scatter, or rows sent back and summed per token.
  if (gathers_) {
    walk.take(travels_ ? all : stream, Use::kCommunication);
    walk.take(stream);
    if (travels_) walk.reduce_scatter(all);
    walk.touch(stream);
    walk.give(travels_ ? all : stream, Use::kCommunication);
  } else {
    if (travels_ && sorted_) walk.take(rows);
    if (travels_) {
      walk.take(rows, Use::kCommunication);
      walk.cut();
    }
    if (travels_ && sorted_) walk.give(rows);
    walk.take(stream);
    if (travels_) walk.give(rows, Use::kCommunication);
  }
  if (!keep) return walk.give(2 * rows + b * (up_ + width_));
  if (local_)
    walk.give(2 * rows);  // inputs are copied again in backward, outputs were weighted before `down`
  else if (!keeps_input(up_update_))
    walk.give(rows);
  if (remakes_activation_ || !keeps_input(down_update_)) walk.give(b * width_);
  walk.take(map_bytes());
}

void ExpertsFootprint::backward(LayerWalk& walk, bool /*wanted*/) const {
  const double rows = row_bytes(), b = rows_ * rank_.bytes, all = gathered_bytes();
  if (gathers_ && travels_) walk.take(all, Use::kCommunication);
  walk.take(rows);
  if (!local_) walk.give(rows);  // outputs of the experts, kept by the weighted sum
  if (gathers_ && travels_) walk.give(all, Use::kCommunication);
  if (!gathers_ && travels_) {
    exchange(walk);
    if (sorted_) walk.touch(rows);
  }
  // The down projection.
  const bool reads_rows = keeps_input(up_update_), reads_activation = keeps_input(down_update_);
  if (remakes_activation_) walk.touch(b * width_, Use::kWorkspace);
  walk.weight_grad(width_ * rank_.h);
  take_hidden_grad(walk, down_update_, rows_);
  walk.take(b * width_);
  walk.touch(fp8_bytes(width_, rank_.h), Use::kWorkspace);
  give_hidden(walk, down_update_, rows_, b * width_);
  walk.give_or_defer(rows + (remakes_activation_ || !reads_activation ? 0 : b * width_));
  // The activation.
  walk.take(b * up_);
  walk.give(b * width_);
  if (remakes_activation_)
    walk.leave_to_graph(b * up_);  // held by the function that recomputes the activation
  else
    walk.give(b * up_);
  // The up projection.
  if (local_ && reads_rows && !walk.defers()) walk.take(rows);
  walk.weight_grad(up_ * rank_.h);
  take_hidden_grad(walk, up_update_, rows_);
  walk.take(rows);
  walk.touch(fp8_bytes(rank_.h, up_), Use::kWorkspace);
  give_hidden(walk, up_update_, rows_, rows);
  walk.give_or_defer((!reads_rows || (local_ && walk.defers()) ? 0 : rows) + b * up_);
  if (!gathers_ && travels_) {
    if (sorted_) walk.touch(rows);
    exchange(walk);
  }
  if (gathers_ && travels_) walk.touch(all, Use::kCommunication);
  walk.take(rank_.stream());
  walk.give(rows);
  walk.leave_to_graph(map_bytes());
}

void ExpertsFootprint::work(WorkMeter& meter) const {
  const double b = chosen_ * rank_.bytes;
  meter.grouped_products(experts_, chosen_, {{.out = up_, .in = rank_.h}, {.out = rank_.h, .in = width_}});
  // Passes over the rows: on several ranks they are sent, sorted, sorted back, returned and summed; on one rank only
  // copied and summed.
  const double passes = travels_ ? 8 : 3;
  meter.moves(passes * b * rank_.h, passes * b * rank_.h);
  meter.moves(b * (up_ + width_), b * (2 * up_ + width_));
  // Grouped kernels give weight gradients in bf16, which another kernel adds to the fp32 sums (grouped_weight_grad).
  if (rank_.machinery.cuda && rank_.bytes == 2 && !rank_.frozen)
    meter.moves(0, experts_ * (up_ + width_) * rank_.h * (rank_.bytes + (rank_.accumulates ? 8 : 4)));
  // The host reads the counts of a layer before it can size the exchange. Then it is no longer ahead of the device,
  // which waits for launches until the experts' products: in rehearsals on an H200 about 0.8 ms per layer and
  // micro-batch.
  if (reads_counts_) meter.launches(kLaunchedLate);
  meter.expert_exchange(b * rank_.h);
}

}  // namespace megalith::nn
