#include "megalith/plan/chunk_walk_internal.h"

#include <algorithm>

#include "megalith/config/derive.h"
#include "megalith/layout/vocab_split.h"

namespace megalith::plan {

namespace {

using Layers = model::RecomputePlan::Layers;

class ChunkWalk : private WalkBase {
 public:
  ChunkWalk(const RunShape& run, const LayerSizes& sizes, const layout::Stage& stage, MemoryWalk& walk)
      : WalkBase(sizes, walk), run_(run), stage_(stage), again_(run.options.recompute), layers_(stage.layers()) {
    const auto padded =
        static_cast<double>(layout::padded_vocab_size(run.model->vocab_size, run.options.vocab_multiple, run.grid.tp));
    columns_ = padded / run.grid.tp;
    const auto all = groups();
    if (z_.frozen && stage.has_embedding() && !all.empty() && !all.front().again) bottom_ = layers_.front();
  }

  void forward() {
    w_.take(angle_bytes());
    if (stage_.has_embedding()) embed_forward();
    for (const Group& group : groups()) group_forward(group);
    if (stage_.has_loss()) head_forward();
  }

  // Returns the bytes that weight gradients hold which wait for their own action.
  double backward(bool defer) {
    defer_ = defer;
    if (stage_.has_loss()) head_backward();
    const auto all = groups();
    for (auto group = all.rbegin(); group != all.rend(); ++group)
      group_backward(*group, {.grad_held = group == all.rbegin() && !stage_.has_loss(),
                              .input_held = group + 1 == all.rend() && !stage_.has_embedding()});
    if (stage_.has_embedding() && !z_.frozen)
      embed_backward();
    else if (stage_.has_embedding() && (all.empty() || all.front().again))
      w_.give(z_.stream());  // nobody needs the gradient
    else if (!stage_.has_embedding() && !all.empty())
      w_.give(z_.stream());  // the input
    w_.give(angle_bytes() + leftover_);
    return deferred_;
  }

 private:
  struct Group {
    std::vector<int> layers;
    bool again = false;  // only their input is kept
  };

  std::vector<Group> groups() const {
    std::vector<Group> result;
    const auto step = static_cast<size_t>(again_.layers == Layers::kUniform ? again_.num_layers : 1);
    for (size_t i = 0; i < layers_.size(); i += step) {
      const size_t end = std::min(i + step, layers_.size());
      const bool twice = again_.layers == Layers::kUniform ||
                         (again_.layers == Layers::kBlock && i < static_cast<size_t>(again_.num_layers));
      result.push_back(
          {{layers_.begin() + static_cast<std::ptrdiff_t>(i), layers_.begin() + static_cast<std::ptrdiff_t>(end)},
           twice});
    }
    return result;
  }

  LayerWalk walk_of(int layer) { return {run_, z_, layer, w_, layer == bottom_}; }
  bool splits_input() const { return again_.split_over_tp && !z_.split_tokens && z_.tp > 1; }

  void group_forward(const Group& group) {
    if (!group.again) {
      for (const int layer : group.layers) walk_of(layer).forward(/*keep=*/true);
      return;
    }
    for (const int layer : group.layers) {
      walk_of(layer).forward(/*keep=*/false);
      if (layer != group.layers.front()) w_.give(z_.stream());
    }
    if (!splits_input()) return;
    w_.take(z_.stream() / z_.tp);
    if (group.layers.front() != layers_.front() || stage_.has_embedding()) w_.give(z_.stream());
  }

  void group_backward(const Group& group, Borders borders) {
    if (!group.again) {
      for (size_t i = group.layers.size(); i > 0; --i)
        layer_backward(group.layers[i - 1],
                       {borders.grad_held && i == group.layers.size(), borders.input_held && i == 1});
      return;
    }
    if (splits_input() && !borders.input_held) w_.take(z_.stream(), Use::kCommunication);
    for (const int layer : group.layers) walk_of(layer).forward(/*keep=*/true);
    const double before = std::exchange(leftover_, 0);
    for (size_t i = group.layers.size(); i > 0; --i)
      layer_backward(group.layers[i - 1], {.grad_held = i == group.layers.size(), .input_held = i == 1});
    w_.give(z_.stream() + std::exchange(leftover_, before));  // the output of this time, and its graph
    if (!borders.grad_held) w_.give(z_.stream());
    if (splits_input()) {
      w_.give(z_.stream() / z_.tp);
      if (!borders.input_held) w_.give(z_.stream(), Use::kCommunication);
    } else if (!borders.input_held) {
      w_.give(z_.stream());
    }
  }

  void layer_backward(int layer, const Borders& borders) {
    LayerWalk walk = walk_of(layer);
    walk.defer_weight_gradients(defer_);
    walk.backward(borders);
    deferred_ += walk.take_deferred();
    leftover_ += walk.take_leftover();
  }

  // Cosines and sines of all positions, in fp32.
  double angle_bytes() const {
    const model::ModelConfig& m = *run_.model;
    if (!m.rope) return 0;
    return 4 * z_.t * static_cast<double>(m.latent ? m.latent->rotary_dim : m.head_dim);
  }

  void embed_forward() {
    if (run_.machinery.cuda && !z_.frozen) w_.take(8 * z_.t);
    row_forward();  // each rank's rows of the table, summed up
    if (run_.model->learned_positions) {
      w_.take(2 * z_.stream());
      w_.give(2 * z_.stream());
    }
    if (run_.model->embedding_dropout > 0) {
      w_.touch(z_.stream());
      w_.take(z_.s * z_.h);
    }
  }

  void embed_backward() {
    if (run_.model->embedding_dropout > 0) {
      w_.touch(z_.stream());
      w_.give(z_.s * z_.h);
    }
    if (run_.model->learned_positions)
      w_.touch(static_cast<double>(run_.model->max_positions) * z_.h * z_.bytes, Use::kWorkspace);
    if (z_.split_tokens) w_.take(z_.whole(), Use::kCommunication);
    const double masked = z_.tp > 1 ? z_.whole() : 0, wide = z_.bytes == 4 ? 0 : 4 * z_.t * z_.h;
    w_.touch(masked + wide, Use::kWorkspace);
    if (z_.split_tokens) w_.give(z_.whole(), Use::kCommunication);
    w_.give(z_.stream() + (run_.machinery.cuda ? 8 * z_.t : 0));
  }

  bool in_pieces() const { return run_.options.loss_chunk > 0; }
  double piece() const { return std::min(z_.t, static_cast<double>(run_.options.loss_chunk)) * columns_ * z_.bytes; }
  double losses() const { return static_cast<double>(1 + stage_.mtp_layers.size()); }

  void head_forward() {
    for (size_t depth = 0; depth < stage_.mtp_layers.size(); ++depth) {
      w_.take(6 * z_.stream());
      walk_of(static_cast<int>(run_.model->num_layers) - 1).forward(/*keep=*/true);
    }
    norm_forward(/*keep=*/true);
    if (in_pieces()) {
      if (z_.split_tokens) w_.take(z_.whole(), Use::kCommunication);
      w_.touch(piece(), Use::kWorkspace);
      if (z_.split_tokens) w_.give(z_.whole(), Use::kCommunication);
    } else {
      for (int i = 0; i < static_cast<int>(losses()); ++i) column_forward(z_.h, columns_);
      if (z_.frozen) w_.give(z_.stream());  // the norm's output: the head needs no gradient
    }
    w_.touch(12 * z_.t, Use::kWorkspace);
    w_.take(losses() * 12 * z_.t);
  }

  void head_backward() {
    w_.touch(4 * z_.t, Use::kWorkspace);
    if (in_pieces()) {
      if (z_.split_tokens) w_.take(z_.whole(), Use::kCommunication);
      w_.take(z_.whole());
      w_.take(piece(), Use::kWorkspace);
      weight_grad(columns_ * z_.h);
      w_.give(piece(), Use::kWorkspace);
      if (z_.split_tokens) {
        w_.take(z_.stream());
        reduce_scatter(z_.whole());
        w_.give(z_.whole());
        w_.give(z_.whole(), Use::kCommunication);
      }
      w_.give(z_.stream());  // the norm's output
    } else {
      for (size_t depth = 0; depth < stage_.mtp_layers.size(); ++depth) w_.give(z_.t * columns_ * z_.bytes);
      column_backward(z_.h, columns_, columns_ * z_.h);
    }
    w_.take(z_.stream());
    w_.give(2 * z_.stream() + z_.s * z_.stats);  // the gradient before it; what the norm kept
    w_.give(losses() * 12 * z_.t);
    for (size_t depth = 0; depth < stage_.mtp_layers.size(); ++depth) {
      w_.take(z_.stream());
      layer_backward(static_cast<int>(run_.model->num_layers) - 1, {});
      w_.give(7 * z_.stream());
    }
  }

  const RunShape& run_;
  const layout::Stage& stage_;
  const model::RecomputePlan& again_;
  const std::vector<int> layers_;
  double columns_ = 0;  // of the logits
  int bottom_ = -1;     // the layer whose input needs no gradient; -1: none
};

}  // namespace

ChunkFootprints chunk_footprints(const RunShape& run, const LayerSizes& sizes, const layout::Stage& stage) {
  const bool splits =
      config::pipeline_shape(run.args, static_cast<int>(run.microbatches)).kind == layout::ScheduleKind::kZeroBubble;
  MemoryWalk forward, backward, weights;
  ChunkWalk(run, sizes, stage, forward).forward();
  const double deferred = ChunkWalk(run, sizes, stage, backward).backward(splits);
  if (splits) {
    weights.touch(sizes.split_tokens ? sizes.whole() : 0, Use::kCommunication);
    weights.give(deferred);
  }
  return {forward.footprint(), backward.footprint(), weights.footprint()};
}

}  // namespace megalith::plan
