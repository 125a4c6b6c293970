// Reading a rank's place from the variables of torchrun, Slurm and Open MPI, and the errors for those that do not fit
// together. Only the last tests open sockets.
#include "megalith/comm/store/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>

#include "megalith/base/error.h"
#include "megalith/comm/launch/launcher.h"
#include "megalith/comm/store/network.h"
#include "megalith/comm/store/process_settings.h"
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

// A task of a Slurm step, with these variables on top.
std::map<std::string, std::string> slurm_task(const std::map<std::string, std::string>& more) {
  std::map<std::string, std::string> variables{{"SLURM_PROCID", "17"},
                                               {"SLURM_NTASKS", "20"},
                                               {"SLURM_LOCALID", "1"},
                                               {"SLURM_STEP_ID", "0"},
                                               {"SLURM_JOB_NODELIST", "n[1-3]"}};
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

TEST(Rendezvous, SlurmTaskLists) {
  using Counts = std::vector<int>;
  EXPECT_EQ(slurm_task_counts("8"), Counts({8}));
  EXPECT_EQ(slurm_task_counts("8(x2)"), Counts({8, 8}));
  EXPECT_EQ(slurm_task_counts("8(x2),4"), Counts({8, 8, 4}));
  EXPECT_EQ(slurm_task_counts("1,2(x3),16(x1)"), Counts({1, 2, 2, 2, 16}));
  EXPECT_EQ(slurm_task_counts(" 4(x2) "), Counts({4, 4}));
  EXPECT_EQ(slurm_task_counts("8(x512)")->size(), 512u);
  for (const char* bad : {"", "x", "8(", "8(2)", "8(x0)", "8(x2", "8(x2),", ",8", "8;4", "-8", "8(x-2)", "8 4",
                          "8(x999999),8(x999999)", "99999999999"})
    EXPECT_EQ(slurm_task_counts(bad), std::nullopt) << bad;
}

TEST(Rendezvous, SlurmTellsTheTasksOfThisNode) {
  EXPECT_EQ(read(slurm_task({})).local_world_size, 20) << "nothing is said: one node";
  const Rendezvous last = read(slurm_task({{"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"}, {"SLURM_NODEID", "2"}}));
  EXPECT_EQ(last.local_world_size, 4);
  EXPECT_FALSE(last.one_machine());
  EXPECT_EQ(read(slurm_task({{"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"}, {"SLURM_NODEID", "0"}})).local_world_size, 8);
  EXPECT_EQ(read(slurm_task({{"SLURM_TASKS_PER_NODE", "10(x2)"}, {"SLURM_NODEID", "1"}})).local_world_size, 10);
  EXPECT_TRUE(read(slurm_task({{"SLURM_STEP_TASKS_PER_NODE", "20"}})).one_machine());
}

TEST(Rendezvous, TheSlurmStepWinsOverTheJob) {
  EXPECT_EQ(read(slurm_task({{"SLURM_STEP_TASKS_PER_NODE", "10(x2)"},
                             {"SLURM_NTASKS_PER_NODE", "8"},
                             {"SLURM_TASKS_PER_NODE", "8(x4)"},
                             {"SLURM_NODEID", "1"}}))
                .local_world_size,
            10);
  // A list that does not add up to the step's tasks is the allocation's.
  EXPECT_EQ(read(slurm_task({{"SLURM_TASKS_PER_NODE", "8(x4)"}, {"SLURM_NTASKS_PER_NODE", "5"}})).local_world_size, 5);
  EXPECT_EQ(read(slurm_task({{"SLURM_TASKS_PER_NODE", "8(x4)"}})).local_world_size, 20);
}

TEST(Rendezvous, SlurmTaskListsThatAreWrongAreNamed) {
  const auto expect_named = [](const std::map<std::string, std::string>& more, const std::string& words) {
    try {
      read(slurm_task(more));
      FAIL() << words << ": did not throw";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect_named({{"SLURM_STEP_TASKS_PER_NODE", "8(x"}}, "SLURM_STEP_TASKS_PER_NODE is \"8(x\"");
  expect_named({{"SLURM_TASKS_PER_NODE", "eight"}}, "SLURM_TASKS_PER_NODE is \"eight\"");
  expect_named({{"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"}}, "SLURM_NODEID is not set");
  expect_named({{"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"}, {"SLURM_NODEID", "3"}}, "SLURM_NODEID is 3");
}

TEST(Rendezvous, SeveralMachinesGetMoreTimeToCome) {
  Rendezvous place;
  place.world_size = place.local_world_size = 8;
  EXPECT_EQ(default_connect_timeout(place.one_machine()), std::chrono::seconds(60));
  place.world_size = 16;
  EXPECT_EQ(default_connect_timeout(place.one_machine()), std::chrono::seconds(600));
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
  EXPECT_TRUE(route->stays_here);
  EXPECT_FALSE(route_to("no-such-host.invalid", 1));
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

TEST(LaunchOptions, RanksMayHaveHostIdsOfTheirOwn) {
  EXPECT_EQ(nccl_host_of_rank("test-%r", 3), "test-3");
  EXPECT_EQ(nccl_host_of_rank("%r.node", 0), "0.node");
  EXPECT_EQ(nccl_host_of_rank("node7", 3), std::nullopt);
  EXPECT_EQ(nccl_host_of_rank(std::nullopt, 3), std::nullopt);
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
