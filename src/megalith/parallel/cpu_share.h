// The CPU cores of a rank: the ones near its GPU, and how many threads it may keep busy.
//
// A machine with several sockets has several NUMA nodes, each with its own memory and its own GPUs. Pinned buffers and
// the thread that launches kernels belong on the GPU's node: across sockets, copies are slower and launches later. And
// ranks that share cores must divide them: libtorch would start a thread per core in every rank.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::parallel {

using CpuList = std::vector<int>;  // numbers of cores, ascending

// Parses the kernel's notation, "0-3,8,10-11"; std::nullopt for other texts.
std::optional<CpuList> parse_cpu_list(std::string_view text);
// The inverse.
std::string cpu_list_text(const CpuList& cpus);

// Returns the NUMA node that a PCI device is attached to. `sys` is /sys except in tests. std::nullopt when the machine
// does not say, or has no nodes (numa_node is -1).
struct NumaNode {
  int number = 0;
  CpuList cpus;
};
std::optional<NumaNode> numa_node_of(const std::filesystem::path& sys, const std::string& pci_bus_id);

// Returns the cores that are online; empty if the machine does not say.
CpuList online_cpus(const std::filesystem::path& sys);
// Returns the cores that the control group of this process, shared with the other ranks, is limited to: a container, or
// a job that has a part of a machine. `proc` and `sys` are /proc and /sys. Empty without such a limit.
CpuList group_cpus(const std::filesystem::path& proc, const std::filesystem::path& sys);

// Returns the cores that this thread may run on.
CpuList allowed_cpus();

// Returns the cores to bind a rank to that may run on `allowed`: those of the node among them. std::nullopt when there
// is nothing to gain, or when the launcher has already bound the rank: then `allowed` is less than `shared`, the cores
// that all ranks of the machine may use together.
std::optional<CpuList> cores_to_bind(const NumaNode& node, const CpuList& allowed, const CpuList& shared);

// Returns the threads for one of `local_ranks` ranks: its part of the shared cores, but no more than it may run on. So
// a rank with its own cores uses all of those, and ranks on the same cores divide them.
int threads_for_rank(size_t allowed, size_t shared, int local_ranks);

// Sets libtorch's threads by the rule above, unless OMP_NUM_THREADS is set. Call it before bind_to_gpu_node, which
// changes the allowed cores.
void divide_threads(int local_ranks);
// Binds this thread, and those that it starts later, to the node of the GPU at `pci_bus_id`, unless
// MEGALITH_NUMA_BIND=0. Logs it at level debug.
void bind_to_gpu_node(const std::string& pci_bus_id);

}  // namespace megalith::parallel
