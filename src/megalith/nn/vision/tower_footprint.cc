// Mirrors the loop of VisionTower::forward and AudioTower::forward, VisionBlock, VisionMerger and the parts of
// model/vision_part.cc and audio_part.cc that gather rows. Parts in which nothing is trained run without autograd: the
// tensors of a block are gone when the next one begins. With recomputation trained blocks keep their input alone. With
// adapters the input of the first block that has one needs no gradient.
//
// A merger keeps its input (for its norm), y (the output of the norm, read by `up`) and `before` (the input of the
// activation), as far as anything that is trained reads them; y, before and the output of the activation all have p · w
// elements.
#include "megalith/nn/vision/tower_footprint.h"

#include <algorithm>
#include <utility>

#include "megalith/nn/attention/self_attention.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/norm_footprint.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"

namespace megalith::nn {

namespace {

AttentionShape attention_of(const VisionShape& shape) {
  return {.hidden = shape.width,
          .heads = shape.heads,
          .kv_heads = shape.heads,
          .head_dim = shape.head_dim(),
          .qkv_bias = true,
          .out_bias = true};
}

MlpShape mlp_of(const VisionShape& shape) {
  return {.hidden = shape.width,
          .width = shape.mlp_width,
          .gated = shape.gated_mlp,
          .bias = true,
          .activation = shape.activation};
}

// Returns the sizes of the products of a merger: their tokens are output rows, which `down` makes as wide as the
// language model.
RankSizes merger_rank(const RankSizes& outer, const VisionShape& shape, double rows, bool frozen) {
  RankSizes rank = tower_rank(outer, shape, rows / static_cast<double>(shape.merged()), 0, frozen);
  rank.h = static_cast<double>(shape.out_width);
  return rank;
}

}  // namespace

// Attention counts half of the keys of a causal sequence, so one that sees all of `seen` rows counts as one of twice
// the length.
RankSizes tower_rank(const RankSizes& outer, const VisionShape& shape, double rows, double seen, bool frozen) {
  return {.t = rows,
          .s = rows,
          .h = static_cast<double>(shape.width),
          .length = 2 * seen,
          .bytes = outer.bytes,
          .dtype = outer.dtype,
          .accumulates = outer.accumulates,
          .frozen = frozen,
          .adapter_dropout = outer.adapter_dropout,
          .machinery = outer.machinery};
}

// Collects the parameters of one part after the other.
class TowerParts::Recorder {
 public:
  Recorder(const TowerParts& tower, const TowerTraining& training, ParameterSizes& to)
      : tower_(tower), training_(training), to_(to) {}

  const TowerTraining& training() const { return training_; }

  // Begins a part and returns the tower's node for it.
  FootprintScope begin(const RankSizes& rank, bool trained) {
    trained_ = trained;
    return FootprintScope(rank, trained ? training_.updates : nullptr, part_).child(tower_.kind_.name);
  }
  // Ends the part; returns whether anything of it is trained.
  bool end() { return add(std::exchange(part_, {}), trained_); }
  // The same for a part that was recorded elsewhere.
  bool add(const ParameterSizes& part, bool trained) {
    bool any = !part.updates.empty();
    for (ParameterSize weight : part.weights) {
      weight.trained &= trained;
      any |= weight.trained;
      to_.weights.push_back(weight);
    }
    to_.updates.insert(to_.updates.end(), part.updates.begin(), part.updates.end());
    return any;
  }

 private:
  const TowerParts& tower_;
  const TowerTraining& training_;
  ParameterSizes& to_;
  ParameterSizes part_;
  bool trained_ = true;
};

// One block.
struct TowerParts::Block {
  Block(const FootprintScope& scope, const VisionShape& shape, const std::vector<OutputPart>& qkv)
      : attention_norm(scope.child("attention_norm"), {.kind = shape.norm, .size = shape.width}),
        attention(make_footprint(scope.child("attention"), attention_of(shape), qkv, "proj")),
        mlp_norm(scope.child("mlp_norm"), {.kind = shape.norm, .size = shape.width}),
        mlp(make_footprint(scope.child("mlp"), mlp_of(shape), /*shares_input=*/false)) {}

  // The input stays; `bottom` says that it needs no gradient.
  void forward(LayerWalk& walk, bool keep, bool bottom) const {
    const double stream = walk.rank().stream();
    attention_norm.forward(walk, keep && !bottom);
    attention->forward(walk, keep);
    if (!keep) walk.give(stream);  // the output of the norm
    mlp_norm.forward(walk, keep);
    mlp->forward(walk, keep);
    if (!keep) walk.give(2 * stream);  // that of the second one, and the stream between the branches
  }

  // Frees the input, unless it is that of the bottom, where the gradient of the stream ends.
  void backward(LayerWalk& walk, bool bottom) const {
    mlp->backward(walk, /*wanted=*/true);
    mlp_norm.backward(walk, /*give_stream_grad=*/true, /*give_input=*/true);
    attention->backward(walk, !bottom);
    if (bottom)
      walk.give(walk.rank().stream());
    else
      attention_norm.backward(walk, true, true);
  }

  NormFootprint attention_norm;
  std::unique_ptr<PartFootprint> attention;
  NormFootprint mlp_norm;
  std::unique_ptr<PartFootprint> mlp;
};

// A norm, and two products with a plain activation between them (plain_mlp in vision_tower.cc).
struct TowerParts::Merger {
  Merger(const FootprintScope& scope, const VisionShape& shape)
      : rank(scope.rank()),
        up(scope, shape.merged() * shape.width, {{"up", shape.merged() * shape.width}}, /*bias=*/true),
        down(scope, "down", shape.merged() * shape.width, shape.out_width, /*bias=*/true) {}

  double wide() const { return rank.t * up.in() * rank.bytes; }  // bytes of y, and of the others of its size
  // Whether the norm is a part of the graph, so that the input stays for backward. `bottom`: it needs no gradient
  // itself.
  bool keeps_input(bool bottom) const { return !bottom || trains_norm; }
  // On the CPU backward computes the activation again.
  bool remakes_activation() const { return !rank.machinery.cuda; }

  // Adds the output rows and returns their bytes. With `keep`, tensors for backward stay.
  double forward(MemoryWalk& memory, bool keep, bool bottom) const {
    LayerWalk walk(rank, memory);
    walk.take(wide());
    if (keep && keeps_input(bottom)) walk.take(statistics);
    up.forward(walk, keep);
    walk.take(wide());
    down.forward(walk, keep);
    if (!keep || remakes_activation() || !down.keeps_input(rank)) walk.give(wide());
    if (!keep || !up.keeps_input(rank)) walk.give(wide());
    if (!keep) walk.give(wide());  // before
    return rank.stream();
  }

  // The gradient of the output exists and stays. Adds that of the input, unless that is the bottom. Returns the bytes
  // that stay as long as the graph.
  double backward(MemoryWalk& memory, bool bottom) const {
    LayerWalk walk(rank, memory);
    const bool reads = down.keeps_input(rank), remakes = remakes_activation();
    down.backward(walk, {.give = reads && !remakes, .made_again = reads && remakes ? wide() : 0});
    walk.take(wide());  // the gradient of `before`, for which that of the activation is dropped
    walk.give(wide());
    if (!remakes) walk.give(wide());
    up.backward(walk, keeps_input(bottom));
    if (keeps_input(bottom)) {
      walk.touch(wide());  // the gradients of both sides of the norm
      walk.give(statistics);
    }
    if (bottom && trains_norm) walk.give(wide());
    return walk.leftover() + (remakes ? wide() : 0);
  }

  const RankSizes& rank;
  ColumnFootprint up;
  RowFootprint down;
  double statistics = 0;     // bytes that the norm keeps
  bool trains_norm = false;  // set once the parameters are known
  bool trains = false;
};

std::unique_ptr<TowerParts::Merger> TowerParts::make_merger(Recorder& recorder, const std::vector<std::string>& path,
                                                            bool at_end) const {
  const TowerTraining& training = recorder.training();
  const bool trained = at_end ? training.merger : training.tower;
  const auto node = [&](bool part_trained) {
    FootprintScope scope = recorder.begin(at_end ? end_ : level_, part_trained);
    for (const std::string& name : path) scope = scope.child(name);
    return scope;
  };
  // The norm at the end is over single rows, those of the levels over merged ones.
  const NormShape shape{.kind = shape_.norm, .size = at_end ? shape_.width : shape_.merged() * shape_.width};
  const NormFootprint norm(node(at_end && kind_.norm_in_tower ? training.tower : trained).child("norm"), shape);
  const bool trains_norm = recorder.end();
  auto merger = std::make_unique<Merger>(node(trained), shape_);
  merger->statistics = norm.kept(at_end ? frame_ : level_);
  merger->trains_norm = trains_norm;
  merger->trains = recorder.end() || trains_norm;
  return merger;
}

TowerParts::TowerParts(const RankSizes& rank, const VisionShape& shape, const TowerRows& rows, const TowerKind& kind,
                       const TowerTraining& training, const ParameterSizes& input)
    : rank_(rank),
      shape_(shape),
      rows_(rows),
      kind_(kind),
      recompute_(training.recompute),
      frame_(tower_rank(rank, shape, rows.own, rows.frame, !training.tower || training.updates != nullptr)),
      window_(tower_rank(rank, shape, rows.own, rows.window, frame_.frozen)),
      level_(merger_rank(rank, shape, rows.own, frame_.frozen)),
      end_(merger_rank(rank, shape, rows.own, !training.merger || training.updates != nullptr)),
      first_trained_(shape.depth) {
  Recorder recorder(*this, training, parameters_);
  trains_input_ = recorder.add(input, training.tower);
  for (int64_t i = 0; i < shape.depth; ++i) {
    const FootprintScope scope = recorder.begin(sees_frame(i) ? frame_ : window_, training.tower);
    blocks_.push_back(std::make_unique<Block>(scope.child("blocks").child(std::to_string(i)), shape_, kind.qkv));
    if (recorder.end()) first_trained_ = std::min(first_trained_, i);
  }
  for (size_t j = 0; j < shape.deepstack_blocks.size(); ++j)
    levels_.push_back(make_merger(recorder, {"deepstack", std::to_string(j)}, /*at_end=*/false));
  merger_ = make_merger(recorder, {kind.merger}, /*at_end=*/true);
}

TowerParts::~TowerParts() = default;

bool TowerParts::trains() const {
  return trains_blocks() || merger_->trains ||
         std::ranges::any_of(levels_, [](const auto& level) { return level->trains; });
}

bool TowerParts::trains_merger() const { return merger_->trains; }

double TowerParts::rows_bytes() const {
  return rows_.gathered * static_cast<double>(1 + levels_.size()) * rank_.h * rank_.bytes;
}

bool TowerParts::sees_frame(int64_t block) const {
  return shape_.window == 0 || std::ranges::find(shape_.full_blocks, block) != shape_.full_blocks.end();
}

int64_t TowerParts::count(bool whole_frame) const {
  const int64_t frames = shape_.window == 0 ? shape_.depth : static_cast<int64_t>(shape_.full_blocks.size());
  return whole_frame ? frames : shape_.depth - frames;
}

const TowerParts::Block* TowerParts::first_of(bool whole_frame) const {
  for (int64_t i = 0; i < shape_.depth; ++i)
    if (sees_frame(i) == whole_frame) return blocks_[static_cast<size_t>(i)].get();
  return nullptr;
}

const PartFootprint* TowerParts::attention(bool whole_frame) const {
  const Block* const block = first_of(whole_frame);
  return block ? block->attention.get() : nullptr;
}

const PartFootprint* TowerParts::mlp(bool whole_frame) const {
  const Block* const block = first_of(whole_frame);
  return block ? block->mlp.get() : nullptr;
}

int64_t TowerParts::bottom() const {
  return trains_input_ || recompute_ || first_trained_ == shape_.depth ? -1 : first_trained_;
}

const TowerParts::Merger* TowerParts::merger_after(int64_t block) const {
  const auto level = std::ranges::find(shape_.deepstack_blocks, block);
  return level == shape_.deepstack_blocks.end()
             ? nullptr
             : levels_[static_cast<size_t>(level - shape_.deepstack_blocks.begin())].get();
}

void TowerParts::forward(MemoryWalk& memory) const {
  double outputs = 0;
  for (int64_t i = 0; i < shape_.depth; ++i) {
    LayerWalk walk(sees_frame(i) ? frame_ : window_, memory);
    blocks_[static_cast<size_t>(i)]->forward(walk, in_graph(i) && !recompute_, i == bottom());
    if (!in_graph(i) || i == bottom()) memory.give(stream());  // the input of the block
    if (const Merger* const level = merger_after(i))
      outputs += level->forward(memory, level->trains || in_graph(i), !in_graph(i));
  }
  outputs += merger_->forward(memory, merger_->trains || trains_blocks(), !trains_blocks());
  if (!merger_->keeps_input(!trains_blocks())) memory.give(stream());
  if (kind_.stacks_rows) memory.touch(outputs);
  if (rank_.tp * rank_.cp > 1) memory.touch(rows_bytes(), Use::kCommunication);
  memory.give(outputs);
  memory.take(rows_bytes());
}

// Layers that are recomputed keep the deepstack rows as an input, which are a part of all rows.
double TowerParts::held_rows() const { return recompute_ && !levels_.empty() ? rows_bytes() : 0; }

void TowerParts::release_after_embedding(MemoryWalk& memory) const {
  if (runs() && levels_.empty()) memory.give(rows_bytes());
}

void TowerParts::release_after_layers(MemoryWalk& memory) const {
  if (runs() && !levels_.empty()) memory.give(rows_bytes() - held_rows());
}

void TowerParts::backward(MemoryWalk& memory) const {
  memory.give(held_rows());
  if (!trains()) return;
  // Gradients of rows and of deepstack rows, which become one.
  memory.touch(rows_bytes());
  const double own = rows_bytes() / static_cast<double>(rank_.tp * rank_.cp);
  if (rank_.tp * rank_.cp > 1) memory.touch(rows_bytes(), Use::kCommunication);
  memory.take(own);
  const bool bottom_end = !trains_blocks();
  double leftover = 0;
  if (merger_->trains || !bottom_end) {
    leftover += merger_->backward(memory, bottom_end);
    if (merger_->keeps_input(bottom_end)) memory.give(stream());
  }
  for (int64_t i = shape_.depth - 1; i >= 0; --i) {
    const Merger* const level = merger_after(i);
    if (level && (level->trains || in_graph(i))) {
      leftover += level->backward(memory, !in_graph(i));
      if (in_graph(i)) {
        memory.touch(stream());  // the sum of both gradients
        memory.give(stream());
      }
    }
    if (!in_graph(i)) continue;
    const Block& block = *blocks_[static_cast<size_t>(i)];
    LayerWalk walk(sees_frame(i) ? frame_ : window_, memory);
    if (recompute_) block.forward(walk, /*keep=*/true, /*bottom=*/false);
    block.backward(walk, i == bottom());
    memory.give(walk.leftover() + (recompute_ ? stream() : 0));
  }
  if (trains_blocks() && !trains_input_ && bottom() < 0) memory.give(stream());  // a gradient that nothing needs
  memory.give(own + leftover);
}

}  // namespace megalith::nn
