#include "megalith/model/families/value_head.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/hf/foreign/torch_file.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/model/families/scores.h"
#include "megalith/nn/parameter/fp8_value.h"

namespace megalith::model {

namespace fs = std::filesystem;

namespace {

constexpr const char* kHeadFile = "value_head.safetensors";
constexpr const char* kHeadPickle = "value_head.bin";
constexpr const char* kHeadWeight = "v_head.summary.weight";
constexpr const char* kHeadBias = "v_head.summary.bias";

// Returns a tensor of torch.save's dict; undefined if it has none of that name.
at::Tensor head_tensor_in(const hf::TorchFile& file, const char* name) {
  const hf::PickleValue* value = file.root().is_dict() ? file.root().find(name) : nullptr;
  const auto described = value != nullptr ? file.describe(*value) : std::nullopt;
  return described ? file.tensor(*described) : at::Tensor();
}

at::Tensor head_tensor_in(const hf::SafetensorsFile& file, const char* name) {
  return file.find(name) != nullptr ? file.tensor(name) : at::Tensor();
}

// Returns a tensor of a head in fp32, once it is what it should be.
at::Tensor checked_head_tensor(const at::Tensor& tensor, const char* name, const std::vector<int64_t>& shape,
                               const fs::path& path) {
  check<DataError>(tensor.defined(), "{} holds no tensor {}; a value head has {} and {}", path.string(), name,
                   kHeadWeight, kHeadBias);
  check<DataError>(at::isFloatingType(tensor.scalar_type()) && tensor.sizes() == at::IntArrayRef(shape),
                   "{}: {} is [{}] of {}; the model needs floating-point numbers of shape [{}]", path.string(), name,
                   fmt::join(tensor.sizes(), ", "), toString(tensor.scalar_type()), fmt::join(shape, ", "));
  const at::Tensor numbers = tensor.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  check<DataError>(numbers.isfinite().all().item<bool>(), "{}: {} has numbers that are not finite", path.string(),
                   name);
  return numbers;
}

template <typename File>
ValueHead head_in(const fs::path& path, int64_t hidden) {
  const File file(path);
  const at::Tensor bias = checked_head_tensor(head_tensor_in(file, kHeadBias), kHeadBias, {1}, path);
  return {.weight = checked_head_tensor(head_tensor_in(file, kHeadWeight), kHeadWeight, {1, hidden}, path),
          .bias = *bias.const_data_ptr<float>()};
}

}  // namespace

bool has_value_head(const fs::path& folder) {
  std::error_code error;
  return !folder.empty() &&
         (fs::is_regular_file(folder / kHeadFile, error) || fs::is_regular_file(folder / kHeadPickle, error));
}

ValueHead read_value_head(const fs::path& folder, int64_t hidden) {
  if (fs::is_regular_file(folder / kHeadFile)) return head_in<hf::SafetensorsFile>(folder / kHeadFile, hidden);
  return head_in<hf::TorchFile>(folder / kHeadPickle, hidden);
}

void copy_value_head(const fs::path& from, const fs::path& to) {
  for (const char* name : {kHeadFile, kHeadPickle}) {
    std::error_code error;
    if (!fs::is_regular_file(from / name, error)) continue;
    fs::copy_file(from / name, to / name, error);
    check<DataError>(!error, "cannot copy {} to {}: {}", (from / name).string(), to.string(), error.message());
  }
}

void fill_from_value_head(const nn::Parameter& parameter, const fs::path& folder) {
  if (parameter.spec.name != kScoreWeight || parameter.value.is_meta()) return;
  const at::Tensor value = nn::loadable(parameter);
  value.copy_(read_value_head(folder, value.size(1)).weight);
}

std::optional<double> score_bias(const ModelConfig& config) {
  if (config.num_labels != 1) return std::nullopt;
  const io::Json* bias = config_value(config, kScoreBias);
  return bias != nullptr && bias->is_number() ? std::optional(bias->get<double>()) : std::nullopt;
}

ModelConfig with_score_bias(ModelConfig config, std::optional<double> bias) {
  if (bias == score_bias(config) || !config.source) return config;
  io::Json json = *config.source;
  json.erase(kScoreBias);
  if (bias) json[kScoreBias] = *bias;
  config.source = std::make_shared<const io::Json>(std::move(json));
  return config;
}

}  // namespace megalith::model
