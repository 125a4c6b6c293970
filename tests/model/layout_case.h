// A model run in some layout by rank threads, and its tensors put together again under the checkpoint's names.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/model/virtual_models.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {

using NamedTensors = std::map<std::string, at::Tensor>;

// How a model is spread over ranks and run.
struct LayoutCase {
  int tp = 1;
  int cp = 1;                    // the batch is padded and dealt, results are put together again
  std::vector<int> cp_levels{};  // hierarchical sizes
  bool sequence_parallel = false;
  int dp = 1;  // each takes an equal share of the sequences
  int ep = 1;  // ranks that share the experts
  std::optional<int> etp{};
  bool main_grad = false;                             // gradients accumulate in attached fp32 buffers
  std::filesystem::path adapter{};                    // only this is trained; empty for no adapter
  bool merged = false;                                // the logits are those with the adapter merged
  model::ModelOptions options;                        // sequence_parallel is taken from above
  std::shared_ptr<const model::Family> own_family{};  // family of the checkpoint; empty for one of the library's
  int ranks() const { return tp * cp * dp; }
  std::string name() const;
};

// The input: sequences as they lie, labels beside their tokens.
struct TokenBatch {
  at::Tensor ids, labels;  // int64 [t]
  ops::SequenceLayout layout;
  double loss_scale = 1;  // the loss is the sum of the token losses times this
  // Images, as in model::ModelInput; undefined if there are none. Not with data parallelism. The layout may have
  // coordinates.
  at::Tensor pixels = {}, grids = {}, visual_rows = {};
  at::Tensor audio_features = {}, audio_lengths = {}, audio_rows = {};  // sounds, likewise
};

// The results of a run, put together from all ranks.
struct RunResult {
  at::Tensor logits;        // [t, v]
  at::Tensor token_losses;  // [t]
  NamedTensors gradients;   // by checkpoint name, whole; with an adapter of what that trains, under its names
  NamedTensors weights;
};

// Loads the checkpoint in `folder` on the layout's rank threads, runs forward and backward, gathers. The configuration
// may be changed before the model is made (dropout).
RunResult run_layout(const std::filesystem::path& folder, const TokenBatch& batch, const LayoutCase& layout,
                     const std::function<void(model::ModelConfig&)>& change = {});

// Returns the layouts that the sizes of the model and of the batch allow; the others are left out by name
// (support/golden.h).
std::vector<LayoutCase> layouts_that_fit(const std::filesystem::path& folder, const TokenBatch& batch,
                                         const std::vector<LayoutCase>& layouts);

// The tensors of a model, or of its adapter, that all ranks' threads fill in together. pick: value or gradient.
NamedTensors whole_tensors(const model::ModelConfig& config, const std::optional<peft::AdapterConfig>& adapter = {});
void fill_in(NamedTensors& whole, const model::VirtualModels& models,
             const std::function<at::Tensor(const nn::Parameter&)>& pick);

}  // namespace megalith::testing
