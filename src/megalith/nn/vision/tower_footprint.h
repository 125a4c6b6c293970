// TowerFootprint: parameters, memory and work of a tower on a rank, by arithmetic, for the media that RankSizes states.
// Vision and audio towers differ in what makes rows of their input; blocks, mergers and the exchange of output rows
// between ranks are the same, and are here. A block is attention and an MLP whose tokens are rows of the tower, so
// their footprints are those of the language model.
//
// Legend: p rows of this rank inside the tower (of vision towers: patches), w width of the tower, h hidden, n = p /
// merge² output rows of this rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megalith/nn/footprint/memory_walk.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/vision/vision_shape.h"

namespace megalith::nn {

// Says which parts of a tower a run trains, and how.
struct TowerTraining {
  bool tower = true;   // the blocks, and everything before them; false if they are frozen
  bool merger = true;  // the merger at the end
  // With adapters the weights are frozen, and parts that are not frozen get these updates. nullptr without adapters.
  // Read by constructors alone.
  const UpdateSizes* updates = nullptr;
  bool recompute = false;  // trained blocks keep their input alone
};

// The differences between kinds of towers in the parts that they share.
struct TowerKind {
  std::string name;             // names the scope of its parameters
  std::vector<OutputPart> qkv;  // tensors of the projection to queries, keys and values
  std::string merger;           // name of the merger at the end
  bool norm_in_tower = false;   // the norm of that merger is frozen with the tower
  bool stacks_rows = false;     // the output rows of all mergers are copied into one tensor
};

// The rows of a micro-batch on a rank.
struct TowerRows {
  double own = 0;       // p
  double frame = 0;     // that attention covers at once
  double window = 0;    // the same, in blocks with windows
  double gathered = 0;  // output rows of all ranks together, with padding
};

// Returns the sizes of the blocks of a tower, in which no rank shares a row, and attention covers `seen` of them at
// once.
RankSizes tower_rank(const RankSizes& outer, const VisionShape& shape, double rows, double seen, bool frozen);

// Blocks, mergers and output rows. Constant after construction; may be walked several times.
class TowerParts {
 public:
  // `rank` holds the sizes of the language model, `shape` those of the blocks. `input` are the parameters of what is
  // before the blocks, as a scope with the tower's updates has recorded them.
  TowerParts(const RankSizes& rank, const VisionShape& shape, const TowerRows& rows, const TowerKind& kind,
             const TowerTraining& training, const ParameterSizes& input);
  ~TowerParts();
  TowerParts(const TowerParts&) = delete;  // its parts refer to its sizes
  TowerParts& operator=(const TowerParts&) = delete;

  // Walks forward: the stream [p, w] exists, and the output rows of all ranks replace it. What backward needs stays.
  void forward(MemoryWalk& memory) const;
  // Walks backward: from the gradient of the rows, which it adds, to that of the stream, which stays if trains_input().
  void backward(MemoryWalk& memory) const;
  // Free the output rows: those that replace embeddings once these are computed, all of them once all layers have run
  // if deepstack rows are among them. Rows that recomputed layers keep are freed by backward().
  void release_after_embedding(MemoryWalk& memory) const;
  void release_after_layers(MemoryWalk& memory) const;

  // All parameters of the tower, in the order in which its constructor creates them.
  const ParameterSizes& parameters() const { return parameters_; }
  bool runs() const { return rows_.own > 0; }
  // Whether anything in it is trained, so that gradients flow into the rows; and whether this reaches the blocks, and
  // what is before them.
  bool trains() const;
  bool trains_blocks() const { return in_graph(shape_.depth - 1); }
  bool trains_input() const { return trains_input_; }
  bool trains_merger() const;
  bool recomputes() const { return recompute_; }
  // Bytes of the stream [p, w], and of the output rows of all ranks.
  double stream() const { return frame_.stream(); }
  double rows_bytes() const;

  // Blocks that see a whole frame, or a window: how many, their parts, and their sizes, those of a rank without tensor
  // parallelism whose tokens are rows. The parts are nullptr if there is no such block.
  int64_t count(bool whole_frame) const;
  const PartFootprint* attention(bool whole_frame) const;
  const PartFootprint* mlp(bool whole_frame) const;
  const RankSizes& rank(bool whole_frame) const { return whole_frame ? frame_ : window_; }
  const VisionShape& shape() const { return shape_; }

 private:
  struct Block;
  struct Merger;
  class Recorder;

  std::unique_ptr<Merger> make_merger(Recorder& recorder, const std::vector<std::string>& path, bool at_end) const;
  bool sees_frame(int64_t block) const;
  // Whether a gradient reaches the output of a block.
  bool in_graph(int64_t block) const { return trains_input_ || block >= first_trained_; }
  // The block whose input needs no gradient, so that its first norm keeps nothing; -1 if recomputation hides that.
  int64_t bottom() const;
  const Block* first_of(bool whole_frame) const;
  const Merger* merger_after(int64_t block) const;
  double held_rows() const;  // bytes of rows that stay until backward

  const RankSizes rank_;  // sizes of the language model
  const VisionShape shape_;
  const TowerRows rows_;
  const TowerKind kind_;
  const bool recompute_;
  // Sizes of blocks of both kinds, of deepstack mergers, and of the merger at the end.
  const RankSizes frame_, window_, level_, end_;
  ParameterSizes parameters_;
  bool trains_input_ = false;
  int64_t first_trained_;  // block; the number of blocks if there is none
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Merger>> levels_;  // by entry of deepstack_blocks
  std::unique_ptr<Merger> merger_;
};

// A tower with what makes rows of its input. Constant after construction. Walks do nothing if a micro-batch has no
// media for it.
class TowerFootprint {
 public:
  virtual ~TowerFootprint() = default;

  // Walks forward, before the embedding. Adds the rows of all ranks, which the chunk holds until parts() release them,
  // and what backward needs.
  virtual void forward(MemoryWalk& memory) const = 0;
  // Walks backward, after that of the embedding: from the gradient of the rows, which it adds, to the end.
  virtual void backward(MemoryWalk& memory) const = 0;
  // Reports the work before the blocks. Sizes of the meter are those of the blocks.
  virtual void input_work(WorkMeter& meter) const = 0;
  virtual const TowerParts& parts() const = 0;
};

}  // namespace megalith::nn
