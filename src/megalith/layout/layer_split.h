// Which layers stand on which pipeline stage.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "megalith/layout/pipeline_layout.h"

namespace megalith::layout {

// What to do when the layers (plus the accounted embedding and loss) do not divide over the stages and nothing else
// steers the split.
//   kRefuse    a ConfigError that gives the balanced split as a layout string to paste. The default: golden
//              layer_split.json lists these inputs as ones that must be refused.
//   kBalance   compute it (see LayerSplit), for callers that want any number of layers to train.
// An uneven split that was ASKED for and that only the reference cannot divide (first and last given with pp 2 and
// virtual stages: it divides by zero) is always computed, as design.md §5 says.
enum class UnevenSplit { kRefuse, kBalance };

// How the user steers the split. At most one of: a layout; first/last counts; the account_for flags.
struct SplitRequest {
  int num_layers = 0;                    // decoder layers of the model
  int pp = 1;                            // pipeline ranks
  std::optional<int> vpp;                // chunks a rank; 1 is taken as it is (the option parser maps 1 to unset)
  std::optional<int> first_rank_layers;  // layers of the first rank over all its chunks
  std::optional<int> last_rank_layers;   // the same for the last rank; the others share the rest equally
  bool account_for_embedding = false;    // count the embedding as one layer of the first stage
  bool account_for_loss = false;         // count the loss as one layer of the last stage
  std::optional<PipelineLayout> layout;  // says it all; also gives vpp
  int mtp_layers = 0;                    // multi-token-prediction layers; on the last stage without a layout
  UnevenSplit uneven = UnevenSplit::kRefuse;
};

// What one chunk of one pipeline rank holds. Layers are numbered over the whole model from 0.
struct Stage {
  int pp_rank = 0;
  int vp_stage = 0;
  int offset = 0;               // the first decoder layer; layers before this stage where it holds none
  int num_layers = 0;           // decoder layers
  std::string types;            // the parts in order, e.g. "Ettt", "ttL", "" (the letters of PipelineLayout)
  std::vector<int> mtp_layers;  // numbers of the mtp layers here

  std::vector<int> layers() const;  // offset, offset+1, …
  bool has_embedding() const { return types.find(kEmbeddingPart) != std::string::npos; }
  bool has_loss() const { return types.find(kLossPart) != std::string::npos; }
};

// Every problem of the request, each with what to do; none when a LayerSplit can be made of it.
std::vector<std::string> problems(const SplitRequest& request);

// A split of layers 0 … num_layers-1 into pp * chunks stages. Chunk v of rank p is global stage v*pp + p, and data
// passes the global stages in order.
//
// Invariant, by construction: one counter runs over the global stages, and a stage is the range between two of its
// values, the first of which is 0 and the last num_layers. So every layer is on exactly one stage, in order; there is
// no way to state a split that drops or repeats one.
//
// Even split: (num_layers + flags) / (pp*vpp) each, less one on the first (last) stage when the embedding (loss) is
// accounted. Balanced split (UnevenSplit::kBalance): stages differ by at most one, ranks too; the extra layers go to
// the global stages 1, 2, …, then to stage 0, so that the stages that also hold the embedding (and the most
// activations) or the loss are the last to get more.
class LayerSplit {
 public:
  // Throws ConfigError with every problem of the request.
  explicit LayerSplit(const SplitRequest& request);

  int num_layers() const { return num_layers_; }
  int pp() const { return pp_; }
  // The virtual size as the reference resolves it: the given one, or that of the layout when it is more than 1.
  std::optional<int> vpp() const { return vpp_; }
  int chunks() const { return vpp_.value_or(1); }
  // The request held a layout: only then does golden JSON show `types`, `mtp_layers` and `mtp_standalone`.
  bool has_layout() const { return has_layout_; }
  // The mtp layers sit on another rank than the last.
  bool mtp_standalone() const;

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
