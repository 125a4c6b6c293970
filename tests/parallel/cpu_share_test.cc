#include "megalith/parallel/cpu_share.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/support/temp_folder.h"

namespace megalith::parallel {
namespace {

namespace fs = std::filesystem;

CpuList range(int begin, int end) {
  CpuList cpus;
  for (int cpu = begin; cpu < end; ++cpu) cpus.push_back(cpu);
  return cpus;
}

// A machine's /sys and /proc, as far as they are read.
class FakeMachine {
 public:
  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text << "\n";
  }
  fs::path sys() const { return folder_ / "sys"; }
  fs::path proc() const { return folder_ / "proc"; }

 private:
  testing::TempFolder folder_;
};

TEST(CpuList, KernelNotation) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n"), (CpuList{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("4,0-1,1"), (CpuList{0, 1, 4}));
  EXPECT_EQ(parse_cpu_list(""), CpuList{});
  for (const char* wrong : {"a", "3-1", "-1", "0-", "1,,2", "0-99999"}) EXPECT_EQ(parse_cpu_list(wrong), std::nullopt);
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(cpu_list_text({}), "");
}

TEST(NumaNode, IsThatOfThePciDevice) {
  const FakeMachine machine;
  machine.write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "0");
  machine.write("sys/bus/pci/devices/0000:9d:00.0/numa_node", "1");
  machine.write("sys/bus/pci/devices/0000:aa:00.0/numa_node", "-1");  // a machine without nodes
  machine.write("sys/bus/pci/devices/0000:bb:00.0/numa_node", "7");   // a node without cores
  machine.write("sys/devices/system/node/node0/cpulist", "0-3,8-11");
  machine.write("sys/devices/system/node/node1/cpulist", "4-7,12-15");
  const auto node = numa_node_of(machine.sys(), "0000:9D:00.0");  // CUDA writes capital letters
  ASSERT_TRUE(node);
  EXPECT_EQ(node->number, 1);
  EXPECT_EQ(cpu_list_text(node->cpus), "4-7,12-15");
  for (const char* without : {"0000:aa:00.0", "0000:bb:00.0", "0000:cc:00.0"})
    EXPECT_FALSE(numa_node_of(machine.sys(), without)) << without;
}

TEST(GroupCpus, OfBothVersions) {
  const FakeMachine second;
  second.write("proc/self/cgroup", "0::/job/step/task");
  EXPECT_TRUE(group_cpus(second.proc(), second.sys()).empty());
  second.write("sys/fs/cgroup/job/cpuset.cpus.effective", "0-15");  // the controller is not switched on below
  EXPECT_EQ(cpu_list_text(group_cpus(second.proc(), second.sys())), "0-15");

  const FakeMachine first;
  first.write("proc/self/cgroup", "5:cpu,cpuacct:/other\n4:cpuset:/slurm/job_7\n0::/");
  first.write("sys/fs/cgroup/cpuset/slurm/job_7/cpuset.cpus", "2-5");
  first.write("sys/fs/cgroup/cpuset/cpuset.cpus", "0-63");
  EXPECT_EQ(cpu_list_text(group_cpus(first.proc(), first.sys())), "2-5");

  const FakeMachine container;  // the path is the host's, the root is the container's
  container.write("proc/self/cgroup", "0::/docker/8f1c");
  container.write("sys/fs/cgroup/cpuset.cpus.effective", "8-11");
  EXPECT_EQ(cpu_list_text(group_cpus(container.proc(), container.sys())), "8-11");
}

TEST(CoresToBind, AreThoseOfTheNodeUnlessTheLauncherHasChosen) {
  const NumaNode node{1, range(4, 8)};
  EXPECT_EQ(cores_to_bind(node, range(0, 8), range(0, 8)), range(4, 8));
  EXPECT_EQ(cores_to_bind(node, range(2, 6), range(2, 6)), range(4, 6));   // a container with some cores
  EXPECT_EQ(cores_to_bind(node, range(2, 6), range(0, 8)), std::nullopt);  // bound by srun or mpirun
  EXPECT_EQ(cores_to_bind(node, range(4, 8), range(4, 8)), std::nullopt);  // nothing to choose
  EXPECT_EQ(cores_to_bind(node, range(0, 4), range(0, 4)), std::nullopt);  // none beside the GPU
}

TEST(ThreadsForRank, APartOfWhatIsSharedAndNoMoreThanIsAllowed) {
  EXPECT_EQ(threads_for_rank(128, 128, 8), 16);  // nobody is bound
  EXPECT_EQ(threads_for_rank(16, 128, 8), 16);   // each has cores of its own
  EXPECT_EQ(threads_for_rank(4, 128, 8), 4);     // srun --cpus-per-task=4
  EXPECT_EQ(threads_for_rank(64, 128, 8), 16);   // mpirun --bind-to numa: four ranks share a node
  EXPECT_EQ(threads_for_rank(16, 16, 8), 2);     // a container
  EXPECT_EQ(threads_for_rank(2, 2, 8), 1);
  EXPECT_EQ(threads_for_rank(4, 0, 2), 2);  // the machine does not tell
}

TEST(DivideThreads, AppliesUnlessTheUserSetsTheNumber) {
  const int before = at::get_num_threads();
  const auto set = ::getenv("OMP_NUM_THREADS");
  const std::string kept = set ? set : "";
  ::setenv("OMP_NUM_THREADS", "3", 1);
  at::set_num_threads(3);
  divide_threads(1000000);
  EXPECT_EQ(at::get_num_threads(), 3);
  ::unsetenv("OMP_NUM_THREADS");
  divide_threads(1000000);
  EXPECT_EQ(at::get_num_threads(), 1);
  if (set) ::setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  at::set_num_threads(before);
}

// On the machine that runs the test: the thread's own mask is read, and one that cannot be placed stays as it is.
TEST(BindToGpuNode, LeavesAThreadAloneWhereTheMachineDoesNotTell) {
  std::thread([] {
    const CpuList before = allowed_cpus();
    EXPECT_FALSE(before.empty());
    bind_to_gpu_node("ffff:ff:ff.7");
    EXPECT_EQ(allowed_cpus(), before);
  }).join();
}

}  // namespace
}  // namespace megalith::parallel
