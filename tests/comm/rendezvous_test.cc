#include "megalith/comm/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>

#include "megalith/base/error.h"
#include "megalith/comm/launcher.h"
#include "megalith/comm/world.h"

namespace megalith::comm {
namespace {

Rendezvous read(const std::map<std::string, std::string>& variables) {
  return rendezvous_from_env([&](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

TEST(Rendezvous, NoVariablesMeanOneProcess) {
  const Rendezvous place = read({});
  EXPECT_TRUE(place.alone());
  EXPECT_EQ(place.source, "single process");
}

TEST(Rendezvous, Torchrun) {
  const Rendezvous place = read({{"RANK", "5"},
                                 {"WORLD_SIZE", "8"},
                                 {"LOCAL_RANK", "1"},
                                 {"LOCAL_WORLD_SIZE", "4"},
                                 {"MASTER_ADDR", "node0"},
                                 {"MASTER_PORT", "29501"},
                                 {"TORCHELASTIC_RUN_ID", "x"},
                                 {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.world_size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.master_addr, "node0");
  EXPECT_EQ(place.master_port, 29501);
  EXPECT_FALSE(place.hosts_store);
  EXPECT_EQ(place.source, "torchrun");
  EXPECT_EQ(place.restarts, 2);
  EXPECT_TRUE(place.counts_alone());
}

TEST(Rendezvous, RankZeroServesTheStoreUnlessTheAgentDoes) {
  std::map<std::string, std::string> variables{
      {"RANK", "0"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29501"}};
  EXPECT_TRUE(read(variables).hosts_store);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_FALSE(read(variables).hosts_store);
}

TEST(Rendezvous, Slurm) {
  const Rendezvous place = read({{"SLURM_PROCID", "9"},
                                 {"SLURM_NTASKS", "16"},
                                 {"SLURM_LOCALID", "1"},
                                 {"SLURM_STEP_ID", "0"},
                                 {"SLURM_JOB_NODELIST", "gpu[03-06,9],login"},
                                 {"SLURM_JOB_ID", "123456"}});
  EXPECT_EQ(place.rank, 9);
  EXPECT_EQ(place.world_size, 16);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.master_addr, "gpu03");
  EXPECT_EQ(place.master_port, 29500 + 3456);
}

TEST(Rendezvous, AShellInsideASlurmAllocationIsOneProcess) {
  EXPECT_TRUE(read({{"SLURM_NTASKS", "16"}, {"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NODELIST", "a"}}).alone());
}

TEST(Rendezvous, OpenMpi) {
  const Rendezvous place = read({{"OMPI_COMM_WORLD_RANK", "0"},
                                 {"OMPI_COMM_WORLD_SIZE", "4"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(place.world_size, 4);
  EXPECT_EQ(place.master_addr, "127.0.0.1");
  EXPECT_TRUE(place.hosts_store);
}

TEST(Rendezvous, OpenMpiOverSeveralMachinesNeedsAnAddress) {
  try {
    read({{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "8"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
    FAIL() << "did not throw";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("MASTER_ADDR is not set"), std::string::npos) << error.what();
  }
}

TEST(Rendezvous, SlurmNodeLists) {
  EXPECT_EQ(first_slurm_host("node1"), "node1");
  EXPECT_EQ(first_slurm_host("node1,node2"), "node1");
  EXPECT_EQ(first_slurm_host("gpu[03-06,9]"), "gpu03");
  EXPECT_EQ(first_slurm_host("gpu[7]"), "gpu7");
  EXPECT_EQ(first_slurm_host("a[1-2]-ib,b"), "a1-ib");
  EXPECT_THROW(first_slurm_host("gpu[03"), ConfigError);
}

TEST(Rendezvous, RouteToLoopback) {
  const auto route = route_to("127.0.0.1", 1);
  ASSERT_TRUE(route.has_value());
  EXPECT_EQ(route->address, "127.0.0.1");
  EXPECT_EQ(route->interface, "lo");
}

TEST(Backend, ThePlatformDecides) {
  EXPECT_EQ(resolve_backend("", false, false), "gloo");
  EXPECT_EQ(resolve_backend("", true, true), "nccl");
  EXPECT_EQ(resolve_backend("Gloo", true, true), "gloo");
}

TEST(Backend, OthersAreRefusedByName) {
  for (const char* name : {"hccl", "rccl", "mpi", "ucc", "xccl", "nonsense"}) {
    try {
      resolve_backend(name, true, true);
      FAIL() << name << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("nccl (CUDA), gloo (CPU)"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(resolve_backend("nccl", false, true), ConfigError);
  EXPECT_THROW(resolve_backend("nccl", true, false), ConfigError);
}

TEST(LaunchOptions, EveryProblemIsReported) {
  LaunchOptions options;
  options.nproc = 0;
  options.nnodes = 2;
  options.node_rank = 2;
  try {
    options.validate();
    FAIL() << "did not throw";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const char* name : {"--nproc", "--node_rank", "--master_port", "--master_addr"})
      EXPECT_NE(text.find(name), std::string::npos) << name << " is not in " << text;
  }
}

// As Gloo writes: without a flag that says so, to a rank that is gone.
TEST(Rendezvous, AWriteToARankThatIsGoneIsAnErrorAndNoSignal) {
  prepare_c10d();
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  close(ends[1]);
  EXPECT_EQ(write(ends[0], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  close(ends[0]);
}

}  // namespace
}  // namespace megalith::comm
