// The memory of one micro-batch in a chunk. Mirrors gpt_model.cc, ops/loss/cross_entropy.cc and
// nn/tensor_parallel/linear_cross_entropy.cc. Forward and backward are walked separately, each from an empty
// MemoryWalk: backward starts at 0 and becomes negative as it frees what forward kept, so that a schedule can add up
// the passes of several micro-batches in any order.
#include <algorithm>
#include <memory>
#include <span>

#include "megalith/model/footprint/model_footprint.h"

namespace megalith::model {

namespace {

using nn::Use;
using RecomputeLayers = RecomputePlan::Layers;

// Walks one pass of one chunk. take(bytes) allocates, give(bytes) frees, touch(bytes) does both, so that the peak sees
// them; residual() is a residual stream of this rank's tokens, [s, h], stream() as many elements in the type of other
// activations, and whole() those of all tp ranks' tokens, [t, h].
class ChunkWalk {
 public:
  ChunkWalk(const ModelFootprint& model, const layout::Stage& stage, nn::MemoryWalk& memory, bool defer = false)
      : model_(model),
        config_(model.config()),
        rank_(model.rank()),
        plan_(model.options().recompute),
        stage_(stage),
        layers_(stage.layers()),
        head_rank_(with_head(rank_, model.trains_head())),
        memory_(memory),
        walk_(rank_, memory, defer),
        head_walk_(head_rank_, memory, defer),
        frozen_walk_(model.frozen_rank(), memory) {
    // With adapters alone trained, nothing below the first layer needs a gradient: its input need not be kept, unless
    // recomputation keeps it anyway.
    const auto all = groups();
    const bool starts = !model_.trains_below() && stage.has_embedding();
    if (starts && !chooses() && !all.empty() && !all.front().recomputed) bottom_ = layers_.front();
    if (!starts || !chooses()) return;
    // Layers below the first trained one run without autograd, unless nothing of the stage is trained: then a gradient
    // passes through all of it (GptModel::forward).
    const auto first = std::ranges::find_if(layers_, [&](int layer) { return model_.trains_layer(layer); });
    if (first != layers_.end()) first_trained_ = *first;
  }

  void forward() {
    walk_.take(angle_bytes());
    for (const auto& tower : towers()) tower->forward(memory_);
    if (stage_.has_embedding()) embed_forward();
    for (const auto& tower : towers()) tower->parts().release_after_embedding(memory_);
    for (const Group& group : groups()) group_forward(group);
    for (const auto& tower : towers()) tower->parts().release_after_layers(memory_);
    if (stage_.has_loss()) head_forward();
  }

  // Returns the bytes held by deferred weight gradients.
  double backward() {
    if (stage_.has_loss()) head_backward();
    const auto all = groups();
    for (auto group = all.rbegin(); group != all.rend(); ++group)
      group_backward(*group, {.grad_held = group == all.rbegin() && !stage_.has_loss(),
                              .input_held = group + 1 == all.rend() && !stage_.has_embedding()});
    if (stage_.has_embedding() && model_.trains_below())
      embed_backward();
    else if (stage_.has_embedding() && (all.empty() || all.front().recomputed || chooses()))
      walk_.give(rank_.residual());  // the gradient, which nothing needs
    else if (!stage_.has_embedding() && !all.empty())
      walk_.give(rank_.residual());  // the input
    for (auto tower = towers().rbegin(); tower != towers().rend(); ++tower) (*tower)->backward(memory_);
    walk_.end_pass();
    walk_.give(angle_bytes() + walk_.leftover() + frozen_walk_.leftover());
    return walk_.deferred() + head_walk_.deferred();
  }

 private:
  // The head may be trained beside adapters, while the layers are frozen.
  static nn::RankSizes with_head(nn::RankSizes rank, bool trained) {
    rank.frozen = !trained;
    return rank;
  }

  // The towers, on the chunk that has them.
  std::span<const std::unique_ptr<nn::TowerFootprint>> towers() const {
    return stage_.has_embedding() ? model_.towers() : std::span<const std::unique_ptr<nn::TowerFootprint>>();
  }

  struct Group {
    std::vector<int> layers;
    bool recomputed = false;  // only the input of the group is kept
  };
  // Whether layers are chosen, and whether a group lies below all that is trained.
  bool chooses() const { return model_.options().trained_layers.has_value(); }
  bool is_below(const Group& group) const { return group.layers.back() < first_trained_; }
  // The walk of a layer: frozen layers have no weight gradients.
  nn::LayerWalk& walk_of(int layer) { return model_.trains_layer(layer) ? walk_ : frozen_walk_; }

  // Splits the layers into groups as GptModel::run_layers does.
  std::vector<Group> groups() const {
    std::vector<Group> result;
    const auto step = static_cast<size_t>(plan_.layers == RecomputeLayers::kUniform ? plan_.num_layers : 1);
    for (size_t i = 0; i < layers_.size(); i += step) {
      const size_t end = std::min(i + step, layers_.size());
      const bool twice = plan_.layers == RecomputeLayers::kUniform ||
                         (plan_.layers == RecomputeLayers::kBlock && i < static_cast<size_t>(plan_.num_layers));
      result.push_back(
          {{layers_.begin() + static_cast<std::ptrdiff_t>(i), layers_.begin() + static_cast<std::ptrdiff_t>(end)},
           twice});
    }
    return result;
  }

  void layer_forward(int layer, bool keep) { model_.layer(layer).forward(walk_of(layer), keep, layer == bottom_); }
  void layer_backward(int layer, const Borders& borders) {
    model_.layer(layer).backward(walk_of(layer), borders, layer == bottom_);
  }
  // Returns the bytes that a layer of the chunk keeps on the host between the end of the next layer's forward and its
  // backward; 0 for other layers. Counts the output in place of the input, which is as large.
  double offloaded(int layer) const {
    const int64_t first = layers_.empty() ? 0 : layers_.front();
    if (layer < first || layer >= first + model_.options().offload.num_layers) return 0;
    nn::MemoryWalk memory;
    nn::LayerWalk walk(rank_, memory);
    model_.layer(layer).forward(walk, /*keep=*/true, layer == bottom_);
    return nn::total(memory.now());
  }
  // Whether the inputs of recomputed groups are kept split over tp.
  bool splits_input() const { return plan_.split_over_tp && !rank_.split_tokens && rank_.tp > 1; }

  // A recomputed group keeps its input and output only; the streams between its layers are freed.
  void group_forward(const Group& group) {
    if (is_below(group)) {
      for (const int layer : group.layers) {
        layer_forward(layer, /*keep=*/false);
        walk_.give(rank_.residual());  // its input
      }
      return;
    }
    if (!group.recomputed) {
      for (const int layer : group.layers) {
        layer_forward(layer, /*keep=*/true);
        walk_.give(offloaded(layer - 1));  // the copies of the layer before have ended
      }
      return;
    }
    for (const int layer : group.layers) {
      layer_forward(layer, /*keep=*/false);
      if (layer != group.layers.front()) walk_.give(rank_.residual());
    }
    if (!splits_input()) return;
    walk_.take(rank_.residual() / rank_.tp);
    if (group.layers.front() != layers_.front() || stage_.has_embedding()) walk_.give(rank_.residual());
  }

  // A recomputed group first runs forward again, keeping everything, and then backward.
  void group_backward(const Group& group, Borders borders) {
    if (is_below(group)) return;
    if (!group.recomputed) {
      for (size_t i = group.layers.size(); i > 0; --i) {
        walk_.take(offloaded(group.layers[i - 1] - 1));  // fetched ahead
        layer_backward(group.layers[i - 1],
                       {borders.grad_held && i == group.layers.size(), borders.input_held && i == 1});
      }
      return;
    }
    if (splits_input() && !borders.input_held) walk_.take(rank_.residual(), Use::kCommunication);
    for (const int layer : group.layers) layer_forward(layer, /*keep=*/true);
    const double before = walk_.exchange_leftover(0), before_frozen = frozen_walk_.exchange_leftover(0);
    for (size_t i = group.layers.size(); i > 0; --i)
      layer_backward(group.layers[i - 1], {.grad_held = i == group.layers.size(), .input_held = i == 1});
    walk_.end_pass();
    // The recomputed output, and its graph.
    walk_.give(rank_.residual() + walk_.exchange_leftover(before) + frozen_walk_.exchange_leftover(before_frozen));
    if (!borders.grad_held) walk_.give(rank_.residual());
    if (splits_input()) {
      walk_.give(rank_.residual() / rank_.tp);
      if (!borders.input_held) walk_.give(rank_.residual(), Use::kCommunication);
    } else if (!borders.input_held) {
      walk_.give(rank_.residual());
    }
  }

  // Returns the bytes of the cosines and sines of all positions, in fp32.
  double angle_bytes() const {
    if (!config_.rope) return 0;
    return 4 * rank_.t * static_cast<double>(config_.latent ? config_.latent->rotary_dim : config_.head_dim);
  }

  void embed_forward() {
    // Backward of the lookup needs the ids (int64) on the device.
    if (rank_.machinery.cuda && model_.trains_embedding()) walk_.take(8 * rank_.t);
    walk_.sum_over_ranks();  // each rank looks up its rows of the table
    if (config_.learned_positions) {
      walk_.take(2 * rank_.stream());
      walk_.give(2 * rank_.stream());
    }
    if (rank_.wide_stream) {
      walk_.take(rank_.residual());
      walk_.give(rank_.stream());
    }
    if (config_.embedding_dropout > 0) {
      walk_.touch(rank_.residual());
      walk_.take(rank_.s * rank_.h);
    }
  }

  // The gradient of the table is added row by row: with tp, gradients of other ranks' tokens are masked out in a copy,
  // and 16-bit gradients are widened to fp32 before they are added.
  void embed_backward() {
    if (config_.embedding_dropout > 0) {
      walk_.touch(rank_.residual());
      walk_.give(rank_.s * rank_.h);
    }
    if (rank_.wide_stream) {
      walk_.take(rank_.stream());
      walk_.give(rank_.residual());
    }
    if (config_.learned_positions && !rank_.frozen)
      walk_.touch(static_cast<double>(config_.max_positions) * rank_.h * rank_.bytes, Use::kWorkspace);
    if (rank_.split_tokens) walk_.take(rank_.whole(), Use::kCommunication);
    const double masked = rank_.tp > 1 ? rank_.whole() : 0, wide = rank_.bytes == 4 ? 0 : 4 * rank_.t * rank_.h;
    walk_.touch(masked + wide, Use::kWorkspace);
    if (rank_.split_tokens) walk_.give(rank_.whole(), Use::kCommunication);
    walk_.give(rank_.stream() + (rank_.machinery.cuda && model_.trains_embedding() ? 8 * rank_.t : 0));
  }

  // Whether the loss is computed in chunks of tokens; piece() is the bytes of the logits of one chunk.
  bool in_pieces() const { return model_.options().loss_chunk > 0; }
  double piece() const {
    return std::min(rank_.t, static_cast<double>(model_.options().loss_chunk)) * model_.head().out() * rank_.bytes;
  }
  // Returns the bytes of the head's weight in fp8, in both orders; 0 if it is not multiplied in fp8.
  double fp8_weight() const {
    const ModelOptions& options = model_.options();
    return options.fp8 && options.fp8_head ? 2 * model_.head().out() * rank_.h : 0;
  }
  // Returns the number of losses: the model's own, and one per multi-token-prediction layer.
  double losses() const { return static_cast<double>(1 + stage_.mtp_layers.size()); }

  // A multi-token-prediction layer keeps six streams beside its block: the embedded ids, the two norms' outputs, the
  // concatenation (two) and the projection's output, which becomes a residual stream.
  double mtp_input() const { return 5 * rank_.stream() + rank_.residual(); }
  void head_forward() {
    for (size_t depth = 0; depth < stage_.mtp_layers.size(); ++depth) {
      walk_.take(mtp_input());
      layer_forward(static_cast<int>(config_.num_layers) - 1, /*keep=*/true);
    }
    model_.final_norm().forward(walk_, /*keep=*/true);
    if (in_pieces()) {
      if (rank_.split_tokens) walk_.take(rank_.whole(), Use::kCommunication);
      walk_.touch(piece() + fp8_weight() / 2, Use::kWorkspace);
      if (rank_.split_tokens) walk_.give(rank_.whole(), Use::kCommunication);
    } else {
      for (int i = 0; i < static_cast<int>(losses()); ++i) model_.head().forward(walk_, /*keep=*/true);
      if (!model_.trains_head()) walk_.give(rank_.stream());  // the norm's output: the head needs no gradient
    }
    // Three fp32 numbers per token: maximum, sum of exponentials and the target's logit.
    walk_.touch(12 * rank_.t, Use::kWorkspace);
    walk_.take(losses() * 12 * rank_.t);
  }

  void head_backward() {
    walk_.touch(4 * rank_.t, Use::kWorkspace);
    if (in_pieces()) {
      if (rank_.split_tokens) walk_.take(rank_.whole(), Use::kCommunication);
      walk_.take(rank_.whole());
      // In fp8 the gradient of the logits in both orders, half of the bytes each, is beside them.
      const double pieces = (fp8_weight() > 0 ? 2 : 1) * piece() + fp8_weight();
      walk_.take(pieces, Use::kWorkspace);
      head_walk_.weight_grad(model_.head().out() * rank_.h);
      walk_.give(pieces, Use::kWorkspace);
      if (rank_.split_tokens) {
        walk_.take(rank_.stream());
        walk_.reduce_scatter(rank_.whole());
        walk_.give(rank_.whole());
        walk_.give(rank_.whole(), Use::kCommunication);
      }
      walk_.give(rank_.stream());  // the norm's output
    } else {
      for (size_t depth = 0; depth < stage_.mtp_layers.size(); ++depth)
        walk_.give(rank_.t * model_.head().out() * rank_.bytes);
      model_.head().backward(head_walk_);
    }
    walk_.take(rank_.residual());
    // The norm's input, output gradient and statistics.
    walk_.give(rank_.residual() + rank_.stream() + model_.final_norm().kept(rank_));
    walk_.give(losses() * 12 * rank_.t);
    for (size_t depth = 0; depth < stage_.mtp_layers.size(); ++depth) {
      walk_.take(rank_.residual());
      layer_backward(static_cast<int>(config_.num_layers) - 1, {});
      walk_.give(mtp_input() + rank_.residual());
    }
  }

  const ModelFootprint& model_;
  const ModelConfig& config_;
  const nn::RankSizes& rank_;
  const RecomputePlan& plan_;
  const layout::Stage& stage_;
  const std::vector<int> layers_;
  const nn::RankSizes head_rank_;
  nn::MemoryWalk& memory_;
  // head_walk_ is for the projection to the logits, frozen_walk_ for layers that are not chosen.
  nn::LayerWalk walk_, head_walk_, frozen_walk_;
  int bottom_ = -1;         // the layer whose input needs no gradient; -1 if there is none
  int first_trained_ = -1;  // below it, layers run without autograd; -1 if none does
};

}  // namespace

ChunkFootprint ModelFootprint::chunk(const layout::Stage& stage, bool defer) const {
  // Three separate walks, since a schedule may run other micro-batches between the passes.
  nn::MemoryWalk forward, backward, weights;
  ChunkWalk(*this, stage, forward).forward();
  const double deferred = ChunkWalk(*this, stage, backward, defer).backward();
  if (defer) {
    weights.touch(rank_.split_tokens ? rank_.whole() : 0, Use::kCommunication);
    weights.give(deferred);
  }
  const double projections = stage.has_loss() && trains_head_ ? static_cast<double>(1 + stage.mtp_layers.size()) : 0;
  return {forward.footprint(), backward.footprint(),
          weights.footprint(), projections * (rank_.t * head_.out() * rank_.bytes + rank_.whole()),
          forward.pieces(),    backward.pieces()};
}

}  // namespace megalith::model
