// Reads the machine from /sys and /proc: the NUMA node of the GPU, the cores that are online, and the control group's
// cores (version 1 or 2). From these follow two rules: bind to the GPU's node only if nobody has bound the rank yet,
// and use as many threads as the rank's share of the common cores. Whatever cannot be read leaves things unchanged.
#include "megalith/parallel/cpu_share.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "megalith/base/env.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"

namespace megalith::parallel {

namespace {

namespace fs = std::filesystem;

constexpr int kMostCpus = 8192;  // the most that a kernel can be built for

// Returns the first line of a file; std::nullopt if it cannot be read.
std::optional<std::string> first_line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// Empty if the file is missing or written in another way.
CpuList cpus_in_file(const fs::path& path) {
  const auto line = first_line_of(path);
  return line ? parse_cpu_list(*line).value_or(CpuList{}) : CpuList{};
}

// Returns the path of this process's control group: under the cpuset hierarchy of version 1, or, for an empty
// `controller`, under the only hierarchy of version 2.
std::optional<std::string> cgroup_path(const fs::path& proc, std::string_view controller) {
  std::ifstream file(proc / "self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:cpuset:/slurm/job_7", "0::/user.slice"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::vector<std::string> names = split(line.substr(first + 1, second - first - 1), ',');
    const bool same = controller.empty() ? second == first + 1 : std::ranges::find(names, controller) != names.end();
    if (same) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Reads `file` in the folder of a group, or in the nearest folder above that has it: where a controller is not enabled,
// the limits of the parent apply. In a container the path may be the host's, and only the root exists.
CpuList cpus_of_group(const fs::path& root, const std::string& group, const char* file) {
  for (fs::path below = fs::path(group).relative_path();; below = below.parent_path()) {
    CpuList cpus = cpus_in_file(root / below / file);
    if (!cpus.empty() || below.empty()) return cpus;
  }
}

// A set of fixed size would fail on machines with more than 1024 cores.
bool bind_this_thread(const CpuList& cpus) {
  cpu_set_t* const set = CPU_ALLOC(kMostCpus);
  if (set == nullptr) return false;
  const size_t bytes = CPU_ALLOC_SIZE(kMostCpus);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  const bool bound = ::sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return bound;
}

// Returns the cores that all ranks of the machine may use together.
CpuList shared_cpus() {
  CpuList limited = group_cpus("/proc", "/sys");
  return limited.empty() ? online_cpus("/sys") : limited;
}

}  // namespace

// "0-3,8" -> {0, 1, 2, 3, 8}; std::nullopt for a text of another form.
std::optional<CpuList> parse_cpu_list(std::string_view text) {
  CpuList cpus;
  const std::string line(trim(text));
  if (line.empty()) return cpus;
  for (const std::string& part : split(line, ',')) {
    const size_t dash = part.find('-');
    const auto first = parse_int(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_int(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kMostCpus) return std::nullopt;
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  std::ranges::sort(cpus);
  cpus.erase(std::ranges::unique(cpus).begin(), cpus.end());
  return cpus;
}

// The inverse: {0, 1, 2, 3, 8} -> "0-3,8".
std::string cpu_list_text(const CpuList& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += end - i == 1 ? std::to_string(cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[end - 1]);
    i = end;
  }
  return text;
}

// The kernel writes -1 where a machine has no nodes.
std::optional<NumaNode> numa_node_of(const fs::path& sys, const std::string& pci_bus_id) {
  const auto line = first_line_of(sys / "bus/pci/devices" / to_lower(pci_bus_id) / "numa_node");
  const auto number = line ? parse_int(*line) : std::nullopt;
  if (!number || *number < 0) return std::nullopt;
  NumaNode node{static_cast<int>(*number),
                cpus_in_file(sys / fmt::format("devices/system/node/node{}/cpulist", *number))};
  return node.cpus.empty() ? std::nullopt : std::optional(std::move(node));
}

CpuList online_cpus(const fs::path& sys) { return cpus_in_file(sys / "devices/system/cpu/online"); }

// Version 1 first: a machine with both hierarchies keeps cpusets there.
CpuList group_cpus(const fs::path& proc, const fs::path& sys) {
  if (const auto group = cgroup_path(proc, "cpuset"))
    if (CpuList cpus = cpus_of_group(sys / "fs/cgroup/cpuset", *group, "cpuset.cpus"); !cpus.empty()) return cpus;
  if (const auto group = cgroup_path(proc, ""))
    return cpus_of_group(sys / "fs/cgroup", *group, "cpuset.cpus.effective");
  return {};
}

CpuList allowed_cpus() {
  CpuList cpus;
  cpu_set_t* const set = CPU_ALLOC(kMostCpus);
  if (set == nullptr) return cpus;
  const size_t bytes = CPU_ALLOC_SIZE(kMostCpus);
  if (::sched_getaffinity(0, bytes, set) == 0)
    for (int cpu = 0; cpu < kMostCpus; ++cpu)
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
  CPU_FREE(set);
  return cpus;
}

std::optional<CpuList> cores_to_bind(const NumaNode& node, const CpuList& allowed, const CpuList& shared) {
  // A rank that lacks some of the common cores has been bound already.
  if (!std::ranges::includes(allowed, shared)) return std::nullopt;
  CpuList cores;
  std::ranges::set_intersection(allowed, node.cpus, std::back_inserter(cores));
  if (cores.empty() || cores.size() == allowed.size()) return std::nullopt;
  return cores;
}

int threads_for_rank(size_t allowed, size_t shared, int local_ranks) {
  // A rank that is bound to fewer cores than its share uses what it has.
  const size_t part = std::max(shared, allowed) / static_cast<size_t>(std::max(1, local_ranks));
  return static_cast<int>(std::max<size_t>(1, std::min(allowed, part)));
}

void divide_threads(int local_ranks) {
  if (env_string("OMP_NUM_THREADS")) return;
  const CpuList allowed = allowed_cpus();
  if (!allowed.empty()) at::set_num_threads(threads_for_rank(allowed.size(), shared_cpus().size(), local_ranks));
}

void bind_to_gpu_node(const std::string& pci_bus_id) {
  if (env_string("MEGALITH_NUMA_BIND") && !env_flag("MEGALITH_NUMA_BIND")) return;
  const auto node = numa_node_of("/sys", pci_bus_id);
  const auto cores = node ? cores_to_bind(*node, allowed_cpus(), shared_cpus()) : std::nullopt;
  if (!cores || !bind_this_thread(*cores) || !is_logged(LogLevel::kDebug)) return;
  log_text(LogLevel::kDebug, fmt::format("bound to cores {} of NUMA node {}, beside the GPU at {}",
                                         cpu_list_text(*cores), node->number, pci_bus_id));
}

}  // namespace megalith::parallel
