#include "megalith/run/resolve/runtime_settings.h"

#include <gtest/gtest.h>

#include "megalith/config/parser.h"
#include "tests/support/expect.h"

namespace megalith::run {
namespace {

using config::Dialect;
using parallel::BackendChoice;
using parallel::SeedRule;
using std::chrono::seconds;
using Words = std::vector<std::string>;

parallel::RuntimeSettings settings(const Words& words, Dialect dialect = Dialect::kTrain,
                                   const comm::Rendezvous& place = {}) {
  return runtime_settings(config::parse_arguments(dialect, words).args, world_of(place));
}

TEST(RuntimeSettings, WithoutWordsTheyAreTheDefaultsOfTheStruct) {
  const parallel::RuntimeSettings from_words = settings({}), plain;
  EXPECT_EQ(from_words.grid.tp, plain.grid.tp);
  EXPECT_EQ(from_words.seeds.seed, plain.seeds.seed);
  EXPECT_EQ(from_words.seeds.rule, plain.seeds.rule);
  EXPECT_EQ(from_words.switches.deterministic, plain.switches.deterministic);
  EXPECT_EQ(from_words.switches.tf32, plain.switches.tf32);
  EXPECT_EQ(from_words.device.use_cpu, plain.device.use_cpu);
  EXPECT_EQ(from_words.device.backend, plain.device.backend);
  EXPECT_EQ(from_words.collective_timeout, plain.collective_timeout);
  EXPECT_EQ(from_words.connect_timeout, plain.connect_timeout);
  EXPECT_EQ(nccl_settings(from_words.nccl), nccl_settings(plain.nccl));
}

TEST(RuntimeSettings, SeedsFollowTheFormulaOfTheDialect) {
  const Words replicas{"--data_parallel_random_init"};
  EXPECT_EQ(settings({}).seeds.rule, SeedRule::kAdapter);
  EXPECT_EQ(settings({}, Dialect::kPretrain).seeds.rule, SeedRule::kMegatron);
  EXPECT_EQ(settings(replicas).seeds.rule, SeedRule::kMegatronPerReplica);
  EXPECT_EQ(settings(replicas, Dialect::kPretrain).seeds.rule, SeedRule::kMegatronPerReplica);
  EXPECT_EQ(settings({}, Dialect::kPretrain).seeds.seed, 1234);
}

TEST(RuntimeSettings, TimeLimits) {
  EXPECT_EQ(settings({"--ddp_timeout=60"}).collective_timeout, seconds(60));
  EXPECT_EQ(settings({"--ddp_timeout=60", "--distributed_timeout_minutes=5"}).collective_timeout, seconds(300));
  EXPECT_EQ(settings({}, Dialect::kPretrain).collective_timeout, seconds(600));
  comm::Rendezvous two_machines;
  two_machines.world_size = 16;
  two_machines.local_world_size = 8;
  EXPECT_EQ(settings({}, Dialect::kTrain, two_machines).connect_timeout, seconds(600));
  EXPECT_EQ(settings({"--store_connect_timeout=5"}, Dialect::kTrain, two_machines).connect_timeout, seconds(5));
}

TEST(RuntimeSettings, LayoutAndDevice) {
  comm::Rendezvous place;
  place.world_size = 8;
  const auto given = settings({"--tp=2", "--use_tp_pp_dp_mapping", "--use_cpu", "--tf32", "--full_determinism"},
                              Dialect::kTrain, place);
  EXPECT_EQ(given.grid.world_size, 8);
  EXPECT_EQ(given.grid.tp, 2);
  EXPECT_EQ(given.grid.order, "tp-cp-ep-pp-dp");
  EXPECT_TRUE(given.device.use_cpu && given.switches.tf32 && given.switches.deterministic);
  EXPECT_EQ(settings({"--ddp_backend=gloo"}).device.backend, BackendChoice::kGloo);
  EXPECT_EQ(settings({"--ddp_backend=nccl"}).device.backend, BackendChoice::kNccl);
}

TEST(RuntimeSettings, GroupsOfHighPriorityAreResolved) {
  EXPECT_EQ(settings({"--high_priority_stream_groups", "ep_dp", "pp"}).nccl.high_priority_groups,
            (Words{"edp", "pp", "pp_forward", "pp_backward"}));
  testing::expect_error<ConfigError>(
      [] {
        settings({"--high_priority_stream_groups", "tensor"});
      },
      {"high_priority_stream_groups", "\"tensor\""});
}

}  // namespace
}  // namespace megalith::run
