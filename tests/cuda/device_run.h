// The results of a training run of the program, and how far two runs are from each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace megalith::testing {

// Losses and gradient norms by step, and the exported tensors by name.
struct DeviceRun {
  std::vector<double> losses, grad_norms;
  std::map<std::string, at::Tensor> tensors;
};

// Reads metrics.jsonl and the exported model, or adapter, of an output_dir.
DeviceRun read_run(const std::filesystem::path& output);
std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& safetensors);

// The largest differences, as shares of the expected loss and norm, and of the largest value of a tensor. Infinite
// where something is missing or not finite.
struct RunDifference {
  double loss = 0, norm = 0, tensors = 0;
  std::string where = "nothing";  // the tensor that differs most
};
// `last_steps`: a continued run has only these of the expected steps. `bf16`: both ran in it.
RunDifference difference_of(const DeviceRun& actual, const DeviceRun& expected,
                            size_t last_steps = std::numeric_limits<size_t>::max(), bool bf16 = false);

}  // namespace megalith::testing
