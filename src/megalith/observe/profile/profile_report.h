// Sums up a profile: the costliest kernels, the share of each kind of work, idle time, and the communication that
// nothing hides. Pure functions of recorded intervals.
//
//   compute stream     ████████  ███        ████████
//   communicator              ████████████                     communication
//                               ─────  exposed: only communication runs
//                                                 idle: nothing runs
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "megalith/observe/profile/work_kind.h"

namespace megalith::observe {

// A kernel or copy on a device. Times in nanoseconds, of any clock.
struct DeviceWork {
  std::string name;
  int64_t begin_ns = 0, end_ns = 0;
  uint64_t launcher = 0;  // HostWork::id of the innermost operator that started it; 0 if there is none
};

// The sums of one kernel.
struct KernelCost {
  std::string name;  // as the profiler gives it
  int64_t calls = 0;
  int64_t total_ns = 0;
};

struct DeviceProfile {
  int64_t window_ns = 0;   // from the begin of the first to the end of the last piece of work
  int64_t idle_ns = 0;     // the part of the window in which nothing runs
  int64_t exposed_ns = 0;  // the part in which communication runs and no computation; copies count as neither
  // How long at least one piece of work of a kind was on the device. Kinds overlap, so these may exceed the window.
  std::array<int64_t, kWorkKinds> busy_ns{};
  std::vector<KernelCost> kernels;  // costliest first
  int64_t of(WorkKind kind) const { return busy_ns[static_cast<size_t>(kind)]; }
};
// All zeros without work.
DeviceProfile profile_device(const std::vector<DeviceWork>& work);

// An operator on the host. Those of one thread nest.
struct HostWork {
  std::string name;
  uint64_t thread = 0;
  int64_t begin_ns = 0, end_ns = 0;
  uint64_t id = 0;                             // differs from that of all others; 0 if unknown
  std::vector<std::vector<int64_t>> shapes{};  // one per argument; none for an argument that is not a tensor
};

// The sums of one operator; `self_ns` is without the operators that it calls.
struct OperatorCost {
  std::string name;
  int64_t calls = 0;
  int64_t self_ns = 0, total_ns = 0;
};
// Returns the operators, those with the longest time of their own first.
std::vector<OperatorCost> profile_host(std::vector<HostWork> work);

// The contents of a profile.
struct ProfileRecord {
  std::vector<DeviceWork> device;  // kernels and copies; empty on the CPU
  std::vector<HostWork> host;      // libtorch's operators
};

// The sums of one matrix product: of the kernels that operators of one name and one shape start.
struct ProductCost {
  std::string what;   // "mm 4096 x 1024 x 512": rows, columns, and the size that is summed over
  int64_t flops = 0;  // work per call
  int64_t calls = 0;
  int64_t total_ns = 0;
};
// Returns the products, costliest first. An operator that starts several kernels (parts and their sum) is one call.
std::vector<ProductCost> profile_products(const ProfileRecord& record);

// Return tables with at most `rows` rows, times per step.
std::string text_of(const DeviceProfile& profile, int64_t steps, size_t rows = 20);
std::string text_of(const std::vector<OperatorCost>& operators, int64_t steps, size_t rows = 20);
std::string text_of(const std::vector<ProductCost>& products, int64_t steps, size_t rows = 20);
// Returns all tables of a profile. Says so where a GPU's kernels, or operators, could not be recorded.
std::string text_of(const ProfileRecord& record, int64_t steps, bool on_gpu, size_t rows = 20);

}  // namespace megalith::observe
