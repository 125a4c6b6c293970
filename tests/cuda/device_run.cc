#include "tests/cuda/device_run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/hf/safetensors_file.h"

namespace megalith::testing {

namespace {

using nlohmann::json;

std::vector<double> metric_values(const std::filesystem::path& metrics, const std::string& name) {
  std::vector<double> found;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);)
    if (const json parsed = json::parse(line); parsed.contains("loss") && parsed.contains(name))
      found.push_back(parsed.at(name).get<double>());
  return found;
}

double difference(double actual, double expected) { return std::abs(actual - expected) / std::abs(expected); }

double largest_difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  double worst = actual.size() == expected.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i)
    worst = std::max(worst, std::isfinite(actual[i]) ? difference(actual[i], expected[i]) : INFINITY);
  return worst;
}

// max|a-b| / max|b|
double difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return INFINITY;
  const double error = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  const double size = expected.abs().max().item<double>();
  return std::isfinite(error) ? (size > 0 ? error / size : error) : INFINITY;
}

// The bias of a key adds the same to all scores of a query where positions turn no key, as in audio towers. Its
// gradient is nothing but rounding, and so is the bias, which began with zero. In bf16, what began with zero on the
// side of the queries keeps few digits: with random weights nearly all keys get the same score. (After three steps a
// query's bias is 2.5 % from fp32 on a CPU, 0.9 % on an H200.)
bool is_rounding(const std::string& name, bool bf16) {
  if (name.find("audio_tower.") == std::string::npos) return false;
  const bool scores =
      name.find("self_attn.q_proj.") != std::string::npos || name.find("self_attn.k_proj.") != std::string::npos;
  return name.ends_with("k_proj.bias") ||
         (bf16 && scores && (name.ends_with(".bias") || name.ends_with("lora_B.weight")));
}

// The last `count` of them; all of them where there are fewer.
std::vector<double> tail(const std::vector<double>& values, size_t count) {
  return {values.end() - static_cast<std::ptrdiff_t>(std::min(count, values.size())), values.end()};
}

}  // namespace

DeviceRun read_run(const std::filesystem::path& output) {
  DeviceRun run{
      metric_values(output / "metrics.jsonl", "loss"), metric_values(output / "metrics.jsonl", "grad_norm"), {}};
  for (const char* name : {"model.safetensors", "adapter_model.safetensors"})
    if (std::filesystem::exists(output / name)) run.tensors = read_tensors(output / name);
  return run;
}

std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& path) {
  std::map<std::string, at::Tensor> tensors;
  const hf::SafetensorsFile file(path);
  for (const hf::TensorInfo& tensor : file.tensors()) tensors[tensor.name] = file.tensor(tensor.name).clone();
  return tensors;
}

RunDifference difference_of(const DeviceRun& actual, const DeviceRun& expected, size_t last_steps, bool bf16) {
  RunDifference found;
  const auto compared = [&](const std::vector<double>& values) { return tail(values, last_steps); };
  found.loss = largest_difference(actual.losses, compared(expected.losses));
  found.norm = largest_difference(actual.grad_norms, compared(expected.grad_norms));
  for (const auto& [name, tensor] : expected.tensors) {
    const auto mine = actual.tensors.find(name);
    double error = mine == actual.tensors.end() ? INFINITY : difference(mine->second, tensor);
    if (is_rounding(name, bf16) && std::isfinite(error)) error = (mine->second - tensor).abs().max().item<double>();
    if (error >= found.tensors) found.where = name;
    found.tensors = std::max(found.tensors, error);
  }
  if (actual.tensors.size() != expected.tensors.size()) found.tensors = INFINITY;
  return found;
}

}  // namespace megalith::testing
