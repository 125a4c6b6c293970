#include "megalith/model/adapter_start.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "megalith/base/error.h"
#include "megalith/hf/weight_files.h"
#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "megalith/peft/adapter_files.h"
#include "megalith/peft/names.h"

namespace megalith::model {

namespace fs = std::filesystem;

namespace {

// Returns the mapping of A's and B's alone.
hf::TensorMapping factor_mapping(const ModelConfig& config, const peft::AdapterConfig& adapter) {
  std::vector<hf::GlobalTensor> factors = adapter_tensors(config, adapter);
  std::erase_if(factors, [](const hf::GlobalTensor& tensor) {
    return !tensor.name.ends_with(".lora_a") && !tensor.name.ends_with(".lora_b");
  });
  return {peft::adapter_names(module_names(config)), factors};
}

bool is_b(const std::string& tensor) { return tensor.ends_with(".lora_B.weight"); }
// The dimension of a factor in the files that has its rank, -1 for other tensors.
int rank_dim(const std::string& tensor) {
  if (is_b(tensor)) return 1;
  return tensor.ends_with(".lora_A.weight") ? 0 : -1;
}

}  // namespace

bool has_start(const VirtualModels& models) { return has_adapter(models) && adapter_of(models).pissa.has_value(); }

void start_adapter(const VirtualModels& models, uint64_t seed) {
  if (!has_start(models)) return;
  for (const auto& chunk : models) chunk->adapters()->make_start().from_weights(seed);
}

void restore_start(const VirtualModels& models, const fs::path& folder) {
  if (!has_start(models)) return;
  for (const auto& chunk : models) restore_start(*chunk->adapters(), models.config(), folder);
}

void restore_start(peft::Adapters& adapters, const ModelConfig& config, const fs::path& folder) {
  const peft::AdapterConfig& adapter = adapters.config();
  if (!adapter.pissa) return;
  const auto files = peft::open_start(folder, adapter);
  if (!files) return adapters.make_start().from_weights(/*seed=*/0);  // the exact decomposition draws no numbers
  const hf::TensorMapping mapping = factor_mapping(config, adapter);
  mapping.check_files(*files, "those with which an adapter started that has the targets of its configuration");
  adapters.make_start().from_files(mapping, *files);
}

ExportedWeights exported_start(const VirtualModels& models) {
  check<ConfigError>(has_start(models), "the model has no adapter that starts from principal parts (pissa_init)");
  const hf::TensorMapping mapping = factor_mapping(models.config(), adapter_of(models));
  ExportedWeights weights;
  for (const hf::FileTensor& tensor : mapping.files())
    weights.tensors.push_back({tensor.name, hf::Dtype::kF32, tensor.shape});
  for (const auto& chunk : models)
    for (const auto& [parameter, value] : chunk->adapters()->started_with())
      add_held(*parameter, value, mapping, models.context(), weights.held);
  return weights;
}

// A0 comes after the rows of A, and -B0 after the columns of B.
ExportedWeights converted_adapter(const VirtualModels& models) {
  ExportedWeights weights = exported_adapter(models), start = exported_start(models);
  std::map<std::string, int64_t> ranks;
  for (hf::WeightSpec& tensor : weights.tensors) {
    const int dim = rank_dim(tensor.name);
    if (dim < 0) continue;
    int64_t& size = tensor.shape[static_cast<size_t>(dim)];
    ranks[tensor.name] = size;
    size *= 2;
  }
  for (hf::HeldRectangle& part : start.held) {
    part.offset[static_cast<size_t>(rank_dim(part.tensor))] += ranks.at(part.tensor);
    if (is_b(part.tensor)) part.data = part.data.neg();
    weights.held.push_back(std::move(part));
  }
  return weights;
}

}  // namespace megalith::model
