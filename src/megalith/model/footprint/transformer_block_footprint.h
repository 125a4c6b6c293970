// TransformerBlockFootprint: what one TransformerBlock needs on a rank: its parts (block_parts.h), the norms before
// them, dropout after them, and what selective recomputation does to each.
#pragma once

#include <memory>

#include "megalith/model/families/model_config.h"
#include "megalith/model/model_options.h"
#include "megalith/nn/footprint/part_footprint.h"
#include "megalith/nn/norm_footprint.h"

namespace megalith::model {

// Which tensors at the borders of a layer others hold on to.
struct Borders {
  bool grad_held = false;   // the gradient that backward starts from
  bool input_held = false;  // the input of the layer
};

class TransformerBlockFootprint {
 public:
  // Records the parameters. What `scope` refers to, `config` and `options` outlive it.
  TransformerBlockFootprint(const nn::FootprintScope& scope, const ModelConfig& config, const ModelOptions& options,
                            int64_t layer);

  // The input [s, h] is there and stays; the output comes. `keep`: for backward. `bottom`: nothing below the layer is
  // trained, and its input needs no gradient.
  void forward(nn::LayerWalk& walk, bool keep, bool bottom = false) const;
  // The gradient of the output is there; that of the input comes in its place, and all that was kept goes.
  void backward(nn::LayerWalk& walk, const Borders& borders, bool bottom = false) const;

  // A part with the norm before it.
  struct Branch {
    nn::NormFootprint norm;
    std::unique_ptr<nn::PartFootprint> part;
    bool repeated;  // selective recomputation runs the whole part again
  };
  const Branch& attention() const { return attention_; }
  const Branch& feed_forward() const { return feed_forward_; }

 private:
  void run_part(nn::LayerWalk& walk, const Branch& branch, bool keep) const;
  void run_part_backward(nn::LayerWalk& walk, const Branch& branch, bool wanted) const;

  const nn::RankSizes& rank_;
  const double dropout_;
  Branch attention_;
  Branch feed_forward_;
};

}  // namespace megalith::model
