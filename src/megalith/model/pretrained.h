// Hugging Face weights in and out, for every layout: each rank reads and writes only what it holds.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/hf/weight_writer.h"
#include "megalith/io/staged_folder.h"
#include "megalith/model/virtual_models.h"

namespace megalith::model {

// read_model_config of a folder with weights. Multi-token-prediction layers that config.json names and the files lack
// (transformers leaves them out when it saves) are not in it.
ModelConfig read_pretrained_config(const std::filesystem::path& folder, const std::shared_ptr<const Family>& own = {});

// Fills the model from the safetensors files of `folder`, whose own configuration is `in_files`. Only two things may
// differ from the model's. The vocabulary: a larger one gets new rows, each the mean of the old rows plus N(0, 1/√h)
// noise. Multi-token-prediction layers that the files lack: they get fresh weights, with a warning. Both are the same
// for every layout (`seed`). Throws DataError listing every tensor that does not fit. All ranks call it.
void load_weights(const VirtualModels& models, const std::filesystem::path& folder, const ModelConfig& in_files,
                  uint64_t seed);

// Rows first … first+count-1 that a grown vocabulary gets, fp64 [count, h]. `mean`: of the old rows, fp64 [h]. `name`
// and `global_shape` (grown) are those of the tensor.
at::Tensor new_vocab_rows(const at::Tensor& mean, const std::string& name, at::IntArrayRef global_shape, int64_t first,
                          int64_t count, uint64_t seed);

struct ExportOptions {
  std::optional<at::ScalarType> dtype;  // of the written weights; empty: that of the checkpoint the model came from
  uint64_t max_shard_bytes = 5'000'000'000;
  std::filesystem::path assets;  // folder with tokenizer and generation_config.json to copy; empty: none
  bool overwrite = false;
};

// Writes a folder that transformers loads: config.json, generation_config.json, tokenizer files, weights. It appears
// under its name only when it is complete. All ranks call it; the weights are written in place by the ranks that hold
// them, never gathered. Without the adapter, where there is one (adapter.h writes it, and merges it).
void save_pretrained(const VirtualModels& models, const std::filesystem::path& folder, const ExportOptions& options);

// ---- Parts of it, for other folders ----
// The weights as Hugging Face's files have them: every tensor, in the order of the files, and what this rank holds.
struct ExportedWeights {
  std::vector<hf::WeightSpec> tensors;  // the same on all ranks
  std::vector<hf::HeldRectangle> held;  // views of the parameters
};
ExportedWeights exported_weights(const VirtualModels& models, at::ScalarType dtype);
// What this rank holds of one parameter, where `mapping` says.
void add_held(const nn::Parameter& parameter, const hf::TensorMapping& mapping,
              const parallel::ParallelContext& context, std::vector<hf::HeldRectangle>& held);
// Writes `weights` into the staged folder, which the first rank of all owns, and commits it; that rank also calls
// `other_files`. Each rectangle is written by the rank whose `replica` is 0; ranks meet after every `turn` of writing.
// Collective.
void write_weights(const parallel::ParallelContext& context, io::StagedFolder& staged, const ExportedWeights& weights,
                   const hf::WeightWriterOptions& options, const std::function<void()>& other_files,
                   std::chrono::milliseconds turn = std::chrono::seconds(10));
// Everything of such a folder that is not a weight; one rank.
void write_model_files(const ModelConfig& config, at::ScalarType dtype, const std::filesystem::path& folder,
                       const std::filesystem::path& assets);

// config.json for a model: the one it was read from, with what has changed since.
std::string config_json(const ModelConfig& config, at::ScalarType dtype);
// Copies tokenizer files, chat templates and generation_config.json where `from` has them; makes a
// generation_config.json from the model's when it has none.
void copy_assets(const std::filesystem::path& from, const std::filesystem::path& to, const ModelConfig& config);

}  // namespace megalith::model
