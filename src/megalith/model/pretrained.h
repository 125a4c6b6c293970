// Reads and writes Hugging Face weights for every layout: each rank reads and writes only what it holds.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/hf/weight_writer.h"
#include "megalith/io/staged_folder.h"
#include "megalith/model/virtual_models.h"

namespace megalith::model {

// read_model_config for a folder with weights. Omits multi-token-prediction layers that config.json names but the files
// lack (transformers drops them when it saves).
ModelConfig read_pretrained_config(const std::filesystem::path& folder, const std::shared_ptr<const Family>& own = {});

// Fills the model from the safetensors files of `folder`, whose own configuration is `in_files`. The model may differ
// from it in three ways only. A larger vocabulary gets new rows, each the mean of the old rows plus N(0, 1/√h) noise;
// so do the rows of `new_tokens` (ascending ids) that the files have in reserve, which do not count in the mean.
// Multi-token-prediction layers that the files lack get initial weights, with a warning, and so does a head that scores
// sequences. All depend on `seed` but not on the layout. Throws DataError listing every tensor that does not fit. All
// ranks call it.
void load_weights(const VirtualModels& models, const std::filesystem::path& folder, const ModelConfig& in_files,
                  uint64_t seed, const std::vector<int64_t>& new_tokens = {});

// Whether the rows of a tensor of ours are the vocabulary, which may grow: embedding.weight, and head.weight unless it
// is that of a family's own head.
bool has_vocabulary_rows(const std::string& name, const ModelConfig& config);

// Tensors of which the model and a folder do not both have one, by their names in the files.
struct KeyDifference {
  std::vector<std::string> absent;  // in the model alone
  std::vector<std::string> unread;  // in the files alone
  bool empty() const { return absent.empty() && unread.empty(); }
};
// Compares the whole model, over all ranks, with the weights in `folder`, whose own configuration is `in_files`. Every
// rank returns the same. Throws DataError that lists the tensors whose shape or type differs.
KeyDifference compare_weights(const VirtualModels& models, const std::filesystem::path& folder,
                              const ModelConfig& in_files);
// Fills the model from the files where both have a tensor; everything else keeps its values. Requires the shapes that
// compare_weights has checked.
void load_common_weights(const VirtualModels& models, const std::filesystem::path& folder, const ModelConfig& in_files);

// Returns rows first … first+count-1 of a grown vocabulary, fp64 [count, h]. `mean` is that of the old rows, fp64 [h];
// `name` and `global_shape` (grown) are those of the tensor.
at::Tensor new_vocab_rows(const at::Tensor& mean, const std::string& name, at::IntArrayRef global_shape, int64_t first,
                          int64_t count, uint64_t seed);

// ---- The files of a model folder beside config.json and weights ----
// Tokenizer files, chat templates, generation_config.json and texts about the model: those of a folder, some of them
// replaced.
struct Assets {
  // A folder is also an Assets.
  Assets(std::filesystem::path from = {}, std::map<std::string, std::string> texts = {})
      : folder(std::move(from)), replaced(std::move(texts)) {}

  std::filesystem::path folder;                 // empty if there is none
  std::map<std::string, std::string> replaced;  // text by file name, of files that differ from those of the folder
};

// Whether a folder holds the files of a tokenizer: a fast one, GPT-2's or SentencePiece's.
bool has_tokenizer(const std::filesystem::path& folder);

// Writes the assets into `to`; adds a generation_config.json derived from the model's configuration if they have none.
void copy_assets(const Assets& assets, const std::filesystem::path& to, const ModelConfig& config);

// How save_pretrained writes.
struct ExportOptions {
  std::optional<at::ScalarType> dtype;  // type of the written weights; nullopt = the original checkpoint's
  // Largest size of a file's tensors, as "5GB" in transformers.
  uint64_t max_shard_bytes = 5'000'000'000;
  Assets assets;  // tokenizer files and generation_config.json
  bool overwrite = false;
};

// Writes a folder that transformers can load: config.json, generation_config.json, tokenizer files, weights. It appears
// under its name only once it is complete. All ranks call it; each rank writes the weights that it holds in place, and
// nothing is gathered. An adapter is not included (adapter.h writes and merges adapters).
void save_pretrained(const VirtualModels& models, const std::filesystem::path& folder, const ExportOptions& options);

// ---- Parts of save_pretrained, for other kinds of folders ----
// The weights in the form of Hugging Face's files: every tensor, in the order of the files, and what this rank holds.
struct ExportedWeights {
  std::vector<hf::WeightSpec> tensors;  // the same on all ranks
  std::vector<hf::HeldRectangle> held;  // views of the parameters
};
// Returns the weights of a model without its adapter, to be written in `dtype`.
ExportedWeights exported_weights(const VirtualModels& models, at::ScalarType dtype);
// Adds to `held` what this rank holds of one parameter, at the place in the files that `mapping` gives. Tensors that
// the mapping does not hold are left out.
void add_held(const nn::Parameter& parameter, const hf::TensorMapping& mapping,
              const parallel::ParallelContext& context, std::vector<hf::HeldRectangle>& held);
// Does the same for other values of the parameter's shape, such as those that it had at an earlier time.
void add_held(const nn::Parameter& parameter, const at::Tensor& like_value, const hf::TensorMapping& mapping,
              const parallel::ParallelContext& context, std::vector<hf::HeldRectangle>& held);
// Returns the type in which an export in `dtype` writes a tensor that is carried through (hf::NameMap::carried): its
// own, bit for bit, unless the export has another type than the model's files.
hf::Dtype carried_dtype(const hf::TensorInfo& tensor, const ModelConfig& config, at::ScalarType dtype);
// Writes `weights` into the staged folder, which global rank 0 owns; that rank also calls `other_files`. The rank whose
// `replica` is 0 writes a rectangle; ranks synchronize after every `turn` of writing. Collective. The caller commits
// the folder, with commit_export.
void write_weights(const parallel::ParallelContext& context, io::StagedFolder& staged, const ExportedWeights& weights,
                   const hf::WeightWriterOptions& options, const std::function<void()>& other_files,
                   std::chrono::milliseconds turn = std::chrono::seconds(10));
// Gives the staged folder its name. Collective.
void commit_export(const parallel::ParallelContext& context, io::StagedFolder& staged);
// Writes everything in such a folder except the weights; one rank calls it.
void write_model_files(const ModelConfig& config, at::ScalarType dtype, const std::filesystem::path& folder,
                       const Assets& assets);

// Returns the config.json of a model: the one it was read from, with the changes made since.
std::string config_json(const ModelConfig& config, at::ScalarType dtype);

}  // namespace megalith::model
