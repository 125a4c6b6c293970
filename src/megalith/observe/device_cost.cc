// Costs follow the convention of the literature: model FLOPs (what the mathematics of the model needs, without
// recomputation) per second and device, and the peak of dense bf16 products as the base of the MFU.
#include "megalith/observe/device_cost.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "megalith/base/text.h"

namespace megalith::observe {
namespace {

// TFLOP/s of dense bf16 products, without sparsity, from the data sheets (the SXM version unless the name says more).
// The first entry that the name contains counts, so longer names come first.
constexpr auto kPeaks = std::to_array<std::pair<std::string_view, double>>({
    {"gb200", 2500},
    {"b200", 2250},
    {"h100 pcie", 756},
    {"h100 nvl", 835},
    {"h100", 989},
    {"h200", 989},
    {"h800", 989},
    {"h20", 148},
    {"a100", 312},
    {"a800", 312},
    {"a40", 149.7},
    {"a10g", 70},
    {"a10", 125},
    {"l40s", 362},
    {"l40", 181},
    {"l4", 121},
    {"rtx 4090", 165},
    {"rtx 3090", 71},
});

}  // namespace

std::optional<double> peak_flops(std::string_view device_name) {
  const std::string lower = to_lower(device_name);
  for (const auto& [part, tera] : kPeaks)
    if (lower.find(part) != std::string::npos) return tera * 1e12;
  return std::nullopt;
}

// Maxima over ranks take one small all-reduce per line.
void DeviceCostCallback::on_log(train::TrainerEvent& event) {
  const auto tokens_per_second = event.metrics.find("tokens_per_second");
  if (!tokens_per_second) return;  // the line of an evaluation
  // Both count the work of all ranks.
  const double flops_per_second =
      *tokens_per_second * settings_.flops_per_token + event.metrics.find("tower_flops_per_second").value_or(0);
  event.metrics.set("tflops_per_device", flops_per_second / world_.size() * 1e-12);
  if (settings_.fp8_share) event.metrics.set("fp8_share", *settings_.fp8_share);
  if (!settings_.peak_bytes) return;
  std::vector<int64_t> bytes{settings_.peak_bytes()};
  if (settings_.reserved_bytes) bytes.push_back(settings_.reserved_bytes());
  if (world_.size() > 1) {  // a single rank needs no wait for the device
    const at::Tensor largest = at::tensor(bytes, at::kLong).to(settings_.device);
    world_.all_reduce(largest, comm::ReduceOp::kMax, "peak memory of all ranks");
    const at::Tensor read = largest.cpu();
    std::copy_n(read.const_data_ptr<int64_t>(), bytes.size(), bytes.begin());
  }
  event.metrics.set("memory", static_cast<double>(bytes[0]));
  if (bytes.size() > 1) event.metrics.set("memory_reserved", static_cast<double>(bytes[1]));
}

}  // namespace megalith::observe
