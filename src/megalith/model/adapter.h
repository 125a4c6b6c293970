// Models with an adapter: made from options or files, written, merged, switched off. All for every layout; all ranks
// call these functions.
//
//   auto models = with_adapter(folder, settings, context, source);   // base frozen, adapter trained
//   {
//     const WithoutAdapter reference(models);                        // the model below the adapter
//     …  forward passes without gradients …
//   }
//   save_adapter(models, folder);                                    // peft's files
//
// run::model_settings and run::adapter_source make `settings` and `source` from the options of a run.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/model/model_settings.h"
#include "megalith/model/pretrained.h"
#include "megalith/model/virtual_models.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::model {

// Which adapters a model gets, and on which base.
struct AdapterSource {
  std::vector<std::filesystem::path> merged{};     // added to the base weights, in order
  std::optional<std::filesystem::path> trained{};  // trained further; absent: `fresh` is made
  peft::AdapterConfig fresh{};                     // its targets are named as users name them; see resolve_targets
  std::string base_name{};  // of the base in adapter_config.json; a trained adapter's own wins; empty: the folder
  bool fresh_base = false;  // the base gets weights from the seed; config.json of its folder is enough
  bool keep_base = false;   // WithoutAdapter also brings back modules to save: costs a copy of them
};

// The adapter with its targets as modules of the model. Throws ConfigError for target names that the model does not
// have, with the nearest that it has.
peft::AdapterConfig resolve_targets(peft::AdapterConfig adapter, const ModelConfig& config);

// The adapter that a source trains on a model: that of the files, or the fresh one. Throws as resolve_targets and
// peft::read_adapter_config do.
peft::AdapterConfig adapter_config(const AdapterSource& source, const ModelConfig& config);

// The model of `folder` with its weights, an adapter on it, and nothing but the adapter trained. `own`: a family of the
// program's own (read_model_config). Throws as AutoModel and load_adapter do.
VirtualModels with_adapter(const std::filesystem::path& folder, const ModelSettings& settings,
                           parallel::ParallelContext& context, const AdapterSource& source,
                           const std::shared_ptr<const Family>& own = {});
// Fresh values from a seed, the same adapter for every layout: A random, B zero.
void initialize_adapter(const VirtualModels& models, uint64_t seed);
// From the files of `folder`, whose targets, rank and scale the model has. Throws DataError listing every tensor that
// does not fit: an adapter of another model.
void load_adapter(const VirtualModels& models, const std::filesystem::path& folder);
// Throws ConfigError for an adapter that no merged model equals: one on an embedding to which the head is tied.
void check_mergeable(const peft::AdapterConfig& adapter, const ModelConfig& config);
// Adds the adapter in `folder` to the weights of a model, which may have another adapter.
void merge_adapter(const VirtualModels& models, const std::filesystem::path& folder);

bool has_adapter(const VirtualModels& models);
const peft::AdapterConfig& adapter_of(const VirtualModels& models);

// A tensor that is trained, whole, and the type of its numbers here.
struct TrainedTensor {
  hf::GlobalTensor tensor;
  at::ScalarType dtype;
};
// All of the model, of every rank: all of its tensors, or those of its adapter.
std::vector<TrainedTensor> trained_tensors(const VirtualModels& models);

// Names and shapes of the files of an adapter for a model.
hf::TensorMapping adapter_mapping(const ModelConfig& config, const peft::AdapterConfig& adapter);
// The adapter as peft's file has it; see ExportedWeights. A's and B's in fp32, modules to save in the model's type.
ExportedWeights exported_adapter(const VirtualModels& models);
// adapter_config.json and tokenizer files; one rank.
void write_adapter_files(const VirtualModels& models, const std::filesystem::path& folder,
                         const std::filesystem::path& assets);
// A folder that peft loads; it appears when it is complete. `assets`: folder with tokenizer files to copy; empty: none.
void save_adapter(const VirtualModels& models, const std::filesystem::path& folder,
                  const std::filesystem::path& assets = {}, bool overwrite = false);

// While one lives the model is what it was below the adapter, for forward passes without gradients: the reference of
// preference training. Modules to save are those of the base with AdapterSource::keep_base, otherwise the trained ones.
class [[nodiscard]] WithoutAdapter {
 public:
  // `models` outlives it. Without an adapter: nothing.
  explicit WithoutAdapter(const VirtualModels& models);

 private:
  std::deque<peft::Adapters::Off> off_;  // one a chunk
};

// While one lives the weights are those with the adapter merged, for exports; then they are what they were, bit for
// bit. The originals wait in host memory.
class [[nodiscard]] WithMergedAdapter {
 public:
  explicit WithMergedAdapter(const VirtualModels& models);
  ~WithMergedAdapter();
  WithMergedAdapter(const WithMergedAdapter&) = delete;
  WithMergedAdapter& operator=(const WithMergedAdapter&) = delete;

 private:
  struct Original {
    nn::Parameter* parameter;
    at::Tensor value;
  };
  std::vector<Original> originals_;
};

}  // namespace megalith::model
