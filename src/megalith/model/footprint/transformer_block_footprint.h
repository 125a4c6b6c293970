// TransformerBlockFootprint: memory of one TransformerBlock on a rank: its parts (block_parts.h), the norms before
// them, dropout after them, and the effect of selective recomputation on each.
#pragma once

#include <memory>

#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/norm_footprint.h"

namespace megalith::model {

// Tensors at the borders of a layer that something else keeps alive.
struct Borders {
  bool grad_held = false;   // the gradient that backward starts from
  bool input_held = false;  // the input of the layer
};

// Immutable. Walks mirror TransformerBlock::forward and its backward, tensor by tensor.
class TransformerBlockFootprint {
 public:
  // Records the parameters. What `scope` refers to, `config` and `options` outlive it.
  TransformerBlockFootprint(const nn::FootprintScope& scope, const ModelConfig& config, const ModelOptions& options,
                            int64_t layer);

  // Walks forward: the input [s, h] exists and stays; the output is added. With `keep`, tensors for backward stay.
  // `bottom` says that nothing below the layer is trained, so that its input needs no gradient.
  void forward(nn::LayerWalk& walk, bool keep, bool bottom = false) const;
  // Walks backward: the gradient of the input replaces that of the output, and all that was kept is freed.
  void backward(nn::LayerWalk& walk, const Borders& borders, bool bottom = false) const;

  // A part with the norm before it.
  struct Branch {
    nn::NormFootprint norm;
    std::unique_ptr<nn::PartFootprint> part;
    bool repeated;  // selective recomputation repeats the whole part
  };
  // The two branches, for a breakdown by part.
  const Branch& attention() const { return attention_; }
  const Branch& feed_forward() const { return feed_forward_; }

 private:
  // One branch after its norm; with `wanted`, backward computes the gradient of its input.
  void run_part(nn::LayerWalk& walk, const Branch& branch, bool keep) const;
  void run_part_backward(nn::LayerWalk& walk, const Branch& branch, bool wanted) const;

  // Whether the results of the parts are added to a residual stream in fp32: by the second norm, and at the end.
  bool adds_in_norm() const { return rank_.wide_stream && dropout_ == 0; }
  void add_at_end(nn::LayerWalk& walk) const;

  // The sizes of this rank, which the scope's owner keeps alive.
  const nn::RankSizes& rank_;
  const double dropout_;
  Branch attention_;
  Branch feed_forward_;
};

}  // namespace megalith::model
