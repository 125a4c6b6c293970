// The cost of a step in terms of its devices: TFLOP/s, their share of the peak (MFU), and memory.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "megalith/comm/group.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Returns the FLOP/s of dense bf16 matrix products from the vendor's data sheet, for the name that the driver reports
// for a GPU ("NVIDIA H100 80GB HBM3"); std::nullopt for devices that are not in the table, such as CPUs. Upper and
// lower case do not matter.
std::optional<double> peak_flops(std::string_view device_name);

// Adds to the trainer's lines, for the callbacks after it:
//   tflops_per_device   from tokens_per_second and the model's FLOPs per token, plus tower_flops_per_second
//   fp8_share           of those FLOPs; only in runs with fp8
//   memory              bytes: peak of this run so far, the largest of all ranks
//   memory_reserved     bytes held by the device's allocator now, the largest of all ranks; includes unused reserve
// Collective over `world`: every rank needs one.
// One small all-reduce per log line; none with a single rank.
class DeviceCostCallback : public train::TrainerCallback {
 public:
  // Sources of the numbers. The same functions must be set on every rank: the maxima are taken by a collective.
  struct Settings {
    double flops_per_token = 0;               // forward and backward of the language model; layout::model_flops
    std::function<int64_t()> peak_bytes;      // peak on this rank; empty leaves out memory
    std::function<int64_t()> reserved_bytes;  // held on this rank; empty when there is no such allocator
    at::Device device = at::kCPU;             // device of the tensors that the group's collectives take
    std::optional<double> fp8_share = {};     // model::fp8_share; nullopt leaves it out
  };
  // `world` contains every rank of the run; its size is the number of devices.
  DeviceCostCallback(comm::Group world, Settings settings) : world_(std::move(world)), settings_(std::move(settings)) {}
  void on_log(train::TrainerEvent& event) override;

 private:
  comm::Group world_;
  Settings settings_;
};

}  // namespace megalith::observe
