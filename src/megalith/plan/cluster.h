// Cluster: the machines that a plan is for: nodes with one kind of GPU (or CPU), and their speeds in computation and
// communication.
//
//   Cluster c = find_cluster("h100-80g");            // a preset, or a file that `megalith doctor --measure` wrote
//   c.gpus_per_node = 4;
//   c.gemm_seconds(4096, 4096, 4096, /*fp32=*/false)  // seconds, at the speed that this size reaches
//
// Speeds are those that are reached, not those of data sheets, except for peak_flops.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/plan/run_shape.h"

namespace megalith::plan {

// Memory is shown in GiB; bandwidths are in powers of ten.
inline constexpr double kGiB = 1024.0 * 1024 * 1024;

// Speed of the links between GPUs.
struct LinkSpeed {
  double bytes_per_second = 0;  // per GPU and direction
  double latency_s = 0;         // per message
  bool operator==(const LinkSpeed&) const = default;
};

// Speed of a matrix product of `flop` operations (2·m·n·k).
struct SpeedPoint {
  double flop = 0;
  double flops_per_second = 0;
  bool operator==(const SpeedPoint&) const = default;
};

// A value: copy and change it to ask "what if". Seconds, bytes and FLOP/s throughout.
struct Cluster {
  std::string gpu;                      // the name of a preset, or of what was measured
  bool cuda = true;                     // false for CPUs, where a process counts as a "GPU"
  double memory_bytes = 0;              // per GPU
  double reserved_bytes = 0;            // part of it that tensors cannot use: driver, libraries, fragmentation
  double peak_flops = 0;                // dense bf16 by the data sheet: the denominator of MFU
  std::vector<SpeedPoint> gemm;         // bf16, ascending; interpolated in the logarithm of the work
  double fp32_factor = 1;               // speed of fp32 products divided by that of bf16
  double attention_flops = 0;           // forward; causal work counts half
  double attention_backward_flops = 0;  // backward, counted alike
  double memory_bytes_per_second = 0;   // bytes read plus bytes written
  double launch_s = 0;                  // shortest time of an operation
  LinkSpeed intra, inter;               // within a node, between nodes
  double host_bytes_per_second = 0;     // to and from host memory, for offloading
  double storage_bytes_per_second = 0;  // per node, to checkpoint storage
  int gpus_per_node = 8;
  int nodes = 1;

  bool operator==(const Cluster&) const = default;
  // Return the number of GPUs, the bytes that tensors may use on each, and the kind of machine.
  int gpus() const { return gpus_per_node * nodes; }
  double usable_bytes() const { return memory_bytes - reserved_bytes; }
  Machinery machinery() const { return cuda ? Machinery{} : Machinery::cpu(); }

  // Returns the seconds of a matrix product [m, k] x [k, n].
  double gemm_seconds(double m, double n, double k, bool fp32) const;
  // Returns the seconds of an operation that reads and writes `bytes` in all.
  double memory_seconds(double bytes) const;
};

// Returns the names of the presets: a100-80g, h100-80g, h200, b200, cpu.
std::vector<std::string> cluster_presets();
// Returns a preset by name, or the cluster in a YAML file. Throws ConfigError for an unknown name, suggesting the
// nearest, and for a field that is missing, unknown or out of range, with its line.
Cluster find_cluster(const std::string& preset_or_file);
// Parses the text of such a file; `name` stands for it in messages.
Cluster parse_cluster(const std::string& yaml, const std::string& name);
// Writes a cluster as YAML, which parse_cluster reads back.
std::string to_yaml(const Cluster& cluster);

}  // namespace megalith::plan
