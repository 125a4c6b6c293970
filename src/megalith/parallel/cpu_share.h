// The CPU cores of a rank: those beside its GPU, and how many threads it may keep busy.
//
// A machine with several sockets has as many NUMA nodes, each with its own memory and its own GPUs. Pinned buffers, and
// the thread that launches kernels, belong on the GPU's node: across sockets copies are slower and launches later. And
// ranks that share cores divide them: libtorch would start a thread for each core in every rank.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::parallel {

using CpuList = std::vector<int>;  // numbers of cores, ascending

// Reads the kernel's notation, "0-3,8,10-11". Nothing when it is written otherwise.
std::optional<CpuList> parse_cpu_list(std::string_view text);
// The other way.
std::string cpu_list_text(const CpuList& cpus);

// Cores of the NUMA node that a PCI device is attached to. `sys` is /sys outside of tests. Nothing when the machine
// does not tell, or has no nodes (numa_node is -1).
struct NumaNode {
  int number = 0;
  CpuList cpus;
};
std::optional<NumaNode> numa_node_of(const std::filesystem::path& sys, const std::string& pci_bus_id);

// Cores that the machine has switched on; empty where it does not tell.
CpuList online_cpus(const std::filesystem::path& sys);
// Cores that the control group of this process leaves to it and to the other ranks beside it: of a container, or of a
// job that has a part of a machine. `proc` and `sys` are /proc and /sys. Empty where there is no such limit.
CpuList group_cpus(const std::filesystem::path& proc, const std::filesystem::path& sys);

// Cores that this thread may run on.
CpuList allowed_cpus();

// To which cores to bind a rank that may run on `allowed`: those of the node among them. Nothing when there is nothing
// to gain, or when the launcher has bound the rank already: then `allowed` is less than `shared`, what all ranks of the
// machine may use together.
std::optional<CpuList> cores_to_bind(const NumaNode& node, const CpuList& allowed, const CpuList& shared);

// Threads for one of `local_ranks` ranks: its part of what they share, and no more than it may run on itself. So a rank
// whose launcher gave it cores of its own uses all of those, and ranks on the same cores divide them.
int threads_for_rank(size_t allowed, size_t shared, int local_ranks);

// Sets libtorch's threads by the rule above, unless OMP_NUM_THREADS says how many. Before bind_to_gpu_node, which
// changes what is allowed.
void divide_threads(int local_ranks);
// Binds this thread, and those that it starts from now on, to the node of the GPU at `pci_bus_id`; not with
// MEGALITH_NUMA_BIND=0. Says so at log level debug.
void bind_to_gpu_node(const std::string& pci_bus_id);

}  // namespace megalith::parallel
