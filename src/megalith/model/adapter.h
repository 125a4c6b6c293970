// Models with an adapter: creating one from options or files, writing, merging and disabling it. Everything works for
// every layout; all ranks call these functions.
//
//   auto models = with_adapter(folder, settings, context, source);   // base frozen, adapter trained
//   {
//     const WithoutAdapter reference(models);                        // the model below the adapter
//     …  forward passes without gradients …
//   }
//   save_adapter(models, folder);                                    // peft's files
//
// run::model_settings and run::adapter_source derive `settings` and `source` from the options of a run.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "megalith/model/model_settings.h"
#include "megalith/model/pretrained.h"
#include "megalith/model/virtual_models.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::model {

// The adapters of a model, and their base.
struct AdapterSource {
  std::vector<std::filesystem::path> merged{};     // added to the base weights, in order
  std::optional<std::filesystem::path> trained{};  // trained further; nullopt = `fresh` is created instead
  peft::AdapterConfig fresh{};                     // its targets have the users' names; see resolve_targets
  std::string base_name{};  // name of the base in adapter_config.json, unless `trained` has one; empty = the folder
  bool fresh_base = false;  // the base gets weights from the seed; its folder needs only a config.json
  bool keep_base = false;   // WithoutAdapter also restores modules to save and biases, which costs a copy of them
};

// Returns a regular expression for peft's exclude_modules: the modules of a model that sees or hears which get no
// update, because `freeze` freezes them, because they are left out here (without_towers), or because they are the
// patches and the first steps of sounds, which are convolutions. Empty for other models.
std::string excluded_modules(const ModelConfig& config, const FreezePlan& freeze);

// Returns the adapter with its targets resolved to modules of the model. Throws ConfigError for target names that the
// model does not have, with the most similar names that it has.
peft::AdapterConfig resolve_targets(peft::AdapterConfig adapter, const ModelConfig& config);

// Returns the adapter that a source trains on a model: that of the files, or the fresh one. Throws like resolve_targets
// and peft::read_adapter_config.
peft::AdapterConfig adapter_config(const AdapterSource& source, const ModelConfig& config);
// Returns the configuration with the bias of the head that the adapters of a source bring (families/value_head.h): that
// of the last one which has a head.
ModelConfig with_head_of(const AdapterSource& source, ModelConfig config);

// Returns the rows of embedding and head that the files of an adapter hold, whole or as updates; 0 if they have none.
int64_t adapter_vocab_size(const std::filesystem::path& folder, const ModelConfig& config);
// Returns the size of the vocabulary that the adapters of a source need: that of `config`, or more if one of them was
// trained on a vocabulary that had grown.
int64_t vocab_size_for(const AdapterSource& source, const ModelConfig& config);
// Returns the modules whose rows are the vocabulary, by the names that modules_to_save takes: embed_tokens, lm_head. A
// tied head has its name, too.
std::vector<std::string> vocabulary_modules(const ModelConfig& config);

// Returns the model of `folder` with its weights and an adapter; only the adapter is trained. The vocabulary grows to
// that of the adapters. `own` is a family that the program defines (read_model_config). Throws like AutoModel and
// load_adapter.
VirtualModels with_adapter(const std::filesystem::path& folder, const ModelSettings& settings,
                           parallel::ParallelContext& context, const AdapterSource& source,
                           const std::shared_ptr<const Family>& own = {});
// Fills the adapter with initial values: A random, B zero, or with pissa principal parts of the weights, which lose
// them (adapter_start.h); and with use_dora magnitudes the norms of the weights, which have to be loaded. A seed gives
// the same adapter for every layout. Collective.
void initialize_adapter(const VirtualModels& models, uint64_t seed);
// Loads the adapter from the files of `folder`; the model must have been created with its targets, rank and scale.
// Throws DataError listing every tensor that does not fit, as for an adapter of another model.
void load_adapter(const VirtualModels& models, const std::filesystem::path& folder);
// Throws ConfigError for an adapter that cannot be merged: one on an embedding to which the head is tied.
void check_mergeable(const peft::AdapterConfig& adapter, const ModelConfig& config);
// Adds the adapter in `folder` to the weights of a model, which may have another adapter on top.
void merge_adapter(const VirtualModels& models, const std::filesystem::path& folder);

// Whether the model has an adapter, and its configuration; without one, adapter_of throws ConfigError.
bool has_adapter(const VirtualModels& models);
const peft::AdapterConfig& adapter_of(const VirtualModels& models);

// A trained tensor as a whole, and its dtype in this process.
struct TrainedTensor {
  hf::GlobalTensor tensor;
  at::ScalarType dtype;
  bool frozen = false;  // shares a parameter with biases that an adapter trains; has optimizer state, never changes
  bool matrix = false;  // nn::is_matrix
};
// Returns the trained tensors of the whole model, over all ranks: all of its tensors, those of chosen layers
// (ModelOptions::trained_layers), or those of its adapter.
std::vector<TrainedTensor> trained_tensors(const VirtualModels& models);

// Returns the whole tensors of an adapter and those of `frozen`, by our names, in the order in which a model has them.
std::vector<hf::GlobalTensor> adapter_tensors(const ModelConfig& config, const peft::AdapterConfig& adapter,
                                              const std::set<std::string>& frozen = {});
// Returns the names and shapes of the tensors in the files of an adapter. `frozen` are tensors of the model that stand
// in them as a whole although they are not trained.
hf::TensorMapping adapter_mapping(const ModelConfig& config, const peft::AdapterConfig& adapter,
                                  const std::set<std::string>& frozen = {});
// The file of the adapter that a model has: its tensors, the names that peft gives them, and the parameters that hold
// them.
class AdapterFile {
 public:
  // Throws ConfigError for a model without an adapter. `models` outlives it.
  explicit AdapterFile(const VirtualModels& models);

  // The names in it are those that update_names gives; name_of() turns one into that of the file.
  const hf::TensorMapping& mapping() const { return mapping_; }
  std::string name_of(const hf::FileTensor& tensor) const;
  // Embedding and head of a vocabulary that has grown, because the base has no such rows, and the buffers of modules to
  // save: in the file although they are not trained, as in peft.
  const std::set<std::string>& frozen() const { return frozen_; }
  // Whether the file has tensors of this parameter.
  bool has(const nn::Parameter& parameter) const;

 private:
  const peft::AdapterConfig& adapter_;
  const hf::NameMap names_;
  const std::set<std::string> frozen_;
  const hf::TensorMapping mapping_;
};
// Returns the adapter in the form of peft's file; see ExportedWeights. A's and B's are in fp32, modules to save and
// biases in the model's dtype.
ExportedWeights exported_adapter(const VirtualModels& models);
// Writes adapter_config.json, that of `adapter`, and the tokenizer files; one rank calls it.
void write_adapter_files(const VirtualModels& models, const peft::AdapterConfig& adapter,
                         const std::filesystem::path& folder, const Assets& assets);
// How save_adapter writes.
struct SaveAdapterOptions {
  Assets assets{};
  bool overwrite = false;
  bool without_start = false;  // an adapter with pissa as one of twice the rank for the base as it was
};
// Writes a folder that peft can load; it appears only once it is complete. An adapter with pissa has its start beside
// it (adapter_start.h) unless it is written without.
void save_adapter(const VirtualModels& models, const std::filesystem::path& folder,
                  const SaveAdapterOptions& options = {});

// Disables the adapter during its lifetime, for forward passes without gradients: the reference of preference training.
// Modules to save and biases are those of the base with AdapterSource::keep_base, otherwise the trained ones.
class [[nodiscard]] WithoutAdapter {
 public:
  // `models` outlives it. Does nothing if there is no adapter. Below an adapter with pissa lies what it left of the
  // weights, not the base.
  explicit WithoutAdapter(const VirtualModels& models);

 private:
  std::deque<peft::Adapters::Off> off_;  // one per chunk
};

// Merges the adapter into the weights during its lifetime, for exports, and then restores them bit for bit. The
// originals are kept in host memory.
class [[nodiscard]] WithMergedAdapter {
 public:
  // Throws ConfigError for an adapter that cannot be merged. Does nothing if there is no adapter. `models` outlives it.
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
