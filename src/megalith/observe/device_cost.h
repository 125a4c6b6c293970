// What a step costs its devices: TFLOP/s, the part of the peak that is (MFU), and memory.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "megalith/comm/group.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// FLOP/s of dense bf16 matrix products by the maker's data sheet, for the name that the driver gives a GPU ("NVIDIA
// H100 80GB HBM3"). Nothing for devices that are not in the table, CPUs among them.
std::optional<double> peak_flops(std::string_view device_name);

// Completes the trainer's lines, for the callbacks after it:
//   tflops_per_device   from tokens_per_second and what a token of the model costs
//   memory              bytes, peak of this run so far, the largest of all ranks
//   memory_reserved     bytes that the allocator of the device holds now, likewise: the rest is held in reserve
// Collective over `world`: all ranks have it.
class DeviceCostCallback : public train::TrainerCallback {
 public:
  struct Settings {
    double flops_per_token = 0;               // of forward and backward; layout::model_flops
    std::function<int64_t()> peak_bytes;      // of this rank; empty: memory is left out
    std::function<int64_t()> reserved_bytes;  // of this rank; empty: there is no such allocator
    at::Device device = at::kCPU;             // where the group's collectives take tensors
  };
  DeviceCostCallback(comm::Group world, Settings settings) : world_(std::move(world)), settings_(std::move(settings)) {}
  void on_log(train::TrainerEvent& event) override;

 private:
  comm::Group world_;
  Settings settings_;
};

}  // namespace megalith::observe
