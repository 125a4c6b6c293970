// Assigns layers to pipeline stages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/layout/pipeline_layout.h"

namespace megalith::layout {

// Chooses between an error and a balanced split when the layers (plus the accounted embedding and loss) do not divide
// over the stages and nothing else determines the split.
//   kRefuse    throw a ConfigError that shows the balanced split as a layout string to paste. The default: golden
//              layer_split.json lists these inputs as ones that must be refused.
//   kBalance   compute the balanced split (see LayerSplit), for callers that want any number of layers to train.
// An uneven split that was requested explicitly is always computed, even where the reference cannot (first and last
// given with pp 2 and virtual stages: it divides by zero).
enum class UnevenSplit { kRefuse, kBalance };

// How the user determines the split. At most one of: a layout; first/last counts; the flags account_for_embedding and
// account_for_loss.
struct SplitRequest {
  int num_layers = 0;                    // decoder layers of the model
  int pp = 1;                            // pipeline ranks
  std::optional<int> vpp;                // chunks per rank; 1 is kept as 1 (the option parser maps 1 to unset)
  std::optional<int> first_rank_layers;  // layers of the first rank over all its chunks
  std::optional<int> last_rank_layers;   // the same for the last rank; the others share the rest equally
  bool account_for_embedding = false;    // count the embedding as one layer of the first stage
  bool account_for_loss = false;         // count the loss as one layer of the last stage
  std::optional<PipelineLayout> layout;  // the complete split; also determines vpp
  int mtp_layers = 0;                    // multi-token-prediction layers; on the last stage unless a layout places them
  UnevenSplit uneven = UnevenSplit::kRefuse;
};

// The contents of one chunk of one pipeline rank. Layers are numbered over the whole model from 0.
struct Stage {
  int pp_rank = 0;
  int vp_stage = 0;
  int offset = 0;               // first decoder layer; the number of layers before it if it holds none
  int num_layers = 0;           // decoder layers
  std::string types;            // the parts in order, e.g. "Ettt", "ttL", "" (the letters of PipelineLayout)
  std::vector<int> mtp_layers;  // numbers of the mtp layers on this stage

  std::vector<int> layers() const;  // offset, offset+1, …
  // Return whether the stage begins with the embedding or ends with the head and the loss.
  bool has_embedding() const { return types.find(kEmbeddingPart) != std::string::npos; }
  bool has_loss() const { return types.find(kLossPart) != std::string::npos; }
};

// Returns every problem of the request, each with what to do; empty if a LayerSplit can be built from it.
std::vector<std::string> problems(const SplitRequest& request);

// A split of layers 0 … num_layers-1 into pp * chunks stages. Chunk v of rank p is global stage v*pp + p, and data
// passes through the global stages in order.
//
// Invariant, by construction: one counter runs over the global stages, and a stage is the range between two of its
// values, the first of which is 0 and the last num_layers. So every layer is on exactly one stage, in order; a split
// that drops or repeats a layer cannot even be expressed.
//
// Even split: (num_layers + flags) / (pp*vpp) each, one less on the first (last) stage when the embedding (loss) is
// accounted for. Balanced split (UnevenSplit::kBalance): stages differ by at most one layer, and so do ranks; the extra
// layers go to the global stages 1, 2, …, then to stage 0, so that the stages that also hold the embedding (and the
// most activations) or the loss are the last to get more.
class LayerSplit {
 public:
  // Throws ConfigError listing every problem of the request.
  explicit LayerSplit(const SplitRequest& request);

  // Decoder layers, and pipeline ranks.
  int num_layers() const { return num_layers_; }
  int pp() const { return pp_; }
  // Returns the virtual size as the reference resolves it: the given one, or that of the layout if it is more than 1.
  std::optional<int> vpp() const { return vpp_; }
  int chunks() const { return vpp_.value_or(1); }
  // Returns whether the request held a layout: only then does golden JSON show `types`, `mtp_layers`, `mtp_standalone`.
  bool has_layout() const { return has_layout_; }
  // Returns whether the mtp layers are on another rank than the last.
  bool mtp_standalone() const;

  // The stages themselves, by value.
  Stage stage(int pp_rank, int vp_stage) const;
  std::vector<Stage> stages() const;      // by rank, then chunk
  Stage stage_of_layer(int layer) const;  // the stage that holds a decoder layer
  PipelineLayout to_layout() const;       // the same split written as a layout

 private:
  int begin_of(size_t global_stage) const { return begins_[global_stage]; }
  int end_of(size_t global_stage) const {
    return global_stage + 1 < begins_.size() ? begins_[global_stage + 1] : num_layers_;
  }

  int num_layers_;
  int pp_;
  std::optional<int> vpp_;
  bool has_layout_;
  std::vector<int> begins_;         // by global stage: the counter before the stage; begins_[0] is 0
  std::vector<std::string> types_;  // by global stage
};

}  // namespace megalith::layout
