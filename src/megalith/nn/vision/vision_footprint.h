// VisionFootprint: memory and work of a vision tower on a rank, by arithmetic, for the images that RankSizes states. A
// block is attention and an MLP whose tokens are patches, so their footprints are those of the language model.
//
// Legend: p patches of this rank, w width of the tower, h hidden, n = p / merge² output rows of this rank.
#pragma once

#include <algorithm>
#include <memory>

#include "megalith/nn/footprint/memory_walk.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/norm_footprint.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/vision/vision_shape.h"

namespace megalith::nn {

// The parts of a tower that are not trained.
struct FrozenVision {
  bool tower = false;
  bool merger = false;
};

// Record the parameters of a tower, and of a block and a merger, which an audio tower has as well.
void add_parameters(const FootprintScope& scope, const VisionShape& shape, FrozenVision frozen);
void add_block(const FootprintScope& scope, const VisionShape& shape, const std::vector<OutputPart>& qkv);
void add_merger(const FootprintScope& scope, const VisionShape& shape, bool norm_merged);

// Constant after construction; may be walked several times. Does nothing if a micro-batch has no images.
class VisionFootprint {
 public:
  // `rank` holds the images and the sizes of the language model.
  VisionFootprint(const RankSizes& rank, const VisionShape& shape, FrozenVision frozen, bool recompute);

  // Walks forward, before the embedding. Adds the rows of all ranks, which the chunk holds until release_rows(), and
  // what backward needs. With `keep` false nothing stays for backward.
  void forward(MemoryWalk& memory) const;
  void release_rows(MemoryWalk& memory) const;
  // Walks backward, after the embedding's: from the gradient of the rows, which it adds, to the end.
  void backward(MemoryWalk& memory) const;

  bool runs() const { return rank_.patches > 0; }
  // Whether anything in it is trained, so that gradients flow into the rows.
  bool trains() const { return !frozen_.tower || !frozen_.merger; }
  // Bytes of the output rows of all ranks.
  double rows_bytes() const;

  // Attention that sees a whole frame or a window, and the MLP. Their sizes are rank(), a rank without tensor
  // parallelism whose tokens are patches.
  const PartFootprint& attention(bool whole_frame) const { return *(whole_frame ? frame_ : window_).attention; }
  const PartFootprint& mlp() const { return *frame_.mlp; }
  const RankSizes& rank(bool whole_frame) const { return whole_frame ? frame_.rank : window_.rank; }
  int64_t whole_frame_blocks() const;
  const VisionShape& shape() const { return shape_; }
  FrozenVision frozen() const { return frozen_; }
  bool recomputes() const { return recompute_; }

 private:
  // A kind of block.
  struct Block {
    Block(const RankSizes& outer, const VisionShape& shape, double seen, bool frozen);  // each patch sees so many
    void forward(LayerWalk& walk, bool keep) const;
    void backward(LayerWalk& walk) const;

    RankSizes rank;
    ParameterSizes unused{};  // takes the parts' parameters, which add_parameters() lists
    NormFootprint attention_norm, mlp_norm;
    std::unique_ptr<PartFootprint> attention, mlp;
  };
  double pixel_bytes() const;                               // bytes of the copy that the patch projection reads
  double merger_forward(LayerWalk& walk, bool keep) const;  // returns the bytes of its output
  void merger_backward(LayerWalk& walk, bool wanted) const;
  double held_rows() const;  // bytes of rows that stay until backward
  const Block& block_of(int64_t number) const {
    const bool whole = shape_.window == 0 || std::ranges::find(shape_.full_blocks, number) != shape_.full_blocks.end();
    return whole ? frame_ : window_;
  }
  bool has_merger(int64_t block) const {
    return std::ranges::find(shape_.deepstack_blocks, block) != shape_.deepstack_blocks.end();
  }
  int64_t mergers() const { return 1 + static_cast<int64_t>(shape_.deepstack_blocks.size()); }

  const RankSizes rank_;  // sizes of the language model
  const VisionShape shape_;
  const FrozenVision frozen_;
  const bool recompute_;
  const Block frame_, window_;
};

}  // namespace megalith::nn
