// Cluster: the machines that a plan is for: one kind of GPU (or CPU), in nodes, and how fast they compute and talk.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/plan/run_shape.h"

namespace megalith::plan {

inline constexpr double kGiB = 1024.0 * 1024 * 1024;

struct LinkSpeed {
  double bytes_per_second = 0;  // of one GPU, one direction
  double latency_s = 0;         // of a message
  bool operator==(const LinkSpeed&) const = default;
};

// How fast a product of so many operations runs (2·m·n·k for one matrix product).
struct SpeedPoint {
  double flop = 0;
  double flops_per_second = 0;
  bool operator==(const SpeedPoint&) const = default;
};

struct Cluster {
  std::string gpu;                      // the name of a preset, or of what was measured
  bool cuda = true;                     // else: CPUs, one "GPU" is a process
  double memory_bytes = 0;              // of a GPU
  double reserved_bytes = 0;            // of it not for tensors: the driver, libraries, what an allocator loses
  double peak_flops = 0;                // dense bf16, by the data sheet: what MFU is counted against
  std::vector<SpeedPoint> gemm;         // bf16, ascending; between points by the logarithm of the work
  double fp32_factor = 1;               // speed of fp32 products over that of bf16
  double attention_flops = 0;           // forward, causal work counted half
  double attention_backward_flops = 0;  //
  double memory_bytes_per_second = 0;   // read and written
  double launch_s = 0;                  // of an operation, at least
  LinkSpeed intra, inter;               // within a node, between nodes
  double host_bytes_per_second = 0;     // to and from host memory: offloading
  double storage_bytes_per_second = 0;  // of a node, to checkpoint storage
  int gpus_per_node = 8;
  int nodes = 1;

  bool operator==(const Cluster&) const = default;
  int gpus() const { return gpus_per_node * nodes; }
  double usable_bytes() const { return memory_bytes - reserved_bytes; }
  Machinery machinery() const { return cuda ? Machinery{} : Machinery::cpu(); }

  // Seconds of a matrix product [m, k] x [k, n].
  double gemm_seconds(double m, double n, double k, bool fp32) const;
  // Seconds of an operation that reads and writes so many bytes.
  double memory_seconds(double bytes) const;
};

// a100-80g, h100-80g, h200, b200, cpu.
std::vector<std::string> cluster_presets();
// A preset by name, or a YAML file. Throws ConfigError: an unknown kind with the nearest, a field that is missing, not
// known or out of range, with its line.
Cluster find_cluster(const std::string& preset_or_file);
Cluster parse_cluster(const std::string& yaml, const std::string& name);
// parse_cluster gives it back.
std::string to_yaml(const Cluster& cluster);

}  // namespace megalith::plan
