// The program as a person or a script meets it: exit codes, what goes to stdout and stderr, real ranks.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program_support.h"
#include "tests/support/expect.h"
#include "tests/support/free_port.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

TEST(Program, VersionAndHelp) {
  EXPECT_TRUE(megalith({"--version"}).out.starts_with("megalith "));
  const auto help = megalith({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"train", "pretrain", "preview", "doctor"}) expect_contains(help.out, command);
}

TEST(Program, UnknownCommandsSuggestTheNearest) {
  expect_refused(megalith({"previw"}), "did you mean preview?");
  expect_refused(megalith({}), "megalith COMMAND");
}

TEST(Program, OptionsOfTrainAreGroupedByTopic) {
  const auto help = megalith({"train", "--help"});
  EXPECT_EQ(help.exit_code, 0) << help.err;
  expect_contains(help.out, "--tensor_model_parallel_size");
  expect_contains(help.out, "--nproc");
  EXPECT_EQ(megalith({"train", "-h"}).out, help.out);
  EXPECT_EQ(help.out.find("--hub_token"), std::string::npos);
  expect_contains(megalith({"train", "--help_all"}).out, "--hub_token");
}

TEST(Program, BadOptionsAreRefusedBeforeAnyWork) {
  expect_refused(megalith({"train", "--learnign_rate", "1"}), "did you mean --learning_rate?");
  expect_refused(megalith({"train", "--nproc", "0"}), "--nproc is 0");
  expect_refused(megalith({"doctor", "--nproc", "4", "--tp", "3"}), "does not divide world_size 4");
  expect_refused(megalith({"doctor", "--nproc", "2", "--seed", "-5"}), "seed");
  expect_refused(megalith({"doctor", "--nproc", "2", "--use_cpu", "--log_dir", "/dev/null/logs"}),
                 "--log_dir /dev/null/logs cannot be made");
  expect_refused(megalith({"doctor", "--nproc", "2", "--ddp_backend", "hccl"}), "hccl");
  expect_refused(megalith({"doctor", "--nproc", "2", "--ddp_backend", "nccl", "--use_cpu"}), "nccl");
  expect_refused(megalith({"preview", "groups", "--world-size", "12", "--tp", "4", "--pp", "2"}),
                 "With 12 ranks: tp=4 pp=1");
}

TEST(Program, DryRunPrintsEveryEffectiveOption) {
  const auto result = megalith({"train", "--nproc", "2", "--tp", "2", "--model_name_or_path", "m", "--dataset", "d",
                                "--template", "qwen3", "--do_train", "--finetuning_type", "full", "--dry_run"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "tensor_model_parallel_size: 2");
  expect_contains(result.out, "learning_rate: 5e-05");
}

TEST(Program, DoctorTellsWhatTheMachineHas) {
  const auto result = megalith({"doctor", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto found = nlohmann::json::parse(result.out);
  for (const char* topic : {"megalith", "libtorch", "CPU", "memory", "disk", "CUDA", "backends", "network", "launcher"})
    EXPECT_TRUE(found.contains(topic)) << topic;
}

TEST(Program, DoctorMeasuresWhatPlanReads) {
  const TempFolder folder;
  const std::string file = (folder / "cluster.yaml").string();
  const auto measured = megalith({"doctor", "--measure", "--nproc", "2", "--use_cpu", "--output", file});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  const auto plan = megalith({"plan", "--gpus", "2", "--gpu", file, "--global_batch_size", "4", "--cutoff_len", "64",
                              "--model", (golden_dir() / "hf" / "llama").string(), "--json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const auto layout_plan = nlohmann::json::parse(plan.out);
  EXPECT_EQ(layout_plan.at("gpu"), "measured");
  EXPECT_GT(layout_plan.at("best").at(0).at("time").at("step_s"), 0);
}

TEST(Program, DoctorChecksFourRanks) {
  const auto result =
      megalith({"doctor", "--nproc", "4", "--use_cpu", "--tp", "2", "--pp", "2", "--size", "64KiB", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.left_behind, 0);
  const auto checked = nlohmann::json::parse(result.out);
  EXPECT_TRUE(checked.at("ok").get<bool>());
  EXPECT_EQ(checked.at("groups").at("tp"), nlohmann::json::parse("[[0,1],[2,3]]"));
  EXPECT_EQ(checked.at("groups").at("pp"), nlohmann::json::parse("[[0,2],[1,3]]"));
}

TEST(Program, DoctorChecksEightRanksWithExperts) {
  const auto result =
      megalith({"doctor", "--nproc", "8", "--use_cpu", "--tp", "2", "--ep", "2", "--cp", "2", "--size", "64KiB"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "are right in every group");
}

TEST(Program, RanksOfTorchrunFindOneAnother) {
  const std::string port = std::to_string(free_port());
  const auto env = [&](int rank) {
    return std::map<std::string, std::string>{
        {"RANK", std::to_string(rank)}, {"LOCAL_RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},
        {"LOCAL_WORLD_SIZE", "2"},      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", port},
        {"MEGALITH_COMM_DEBUG", "1"}};
  };
  Subprocess second({MEGALITH_PROGRAM, "doctor", "--use_cpu", "--tp", "2"}, env(1)),
      first({MEGALITH_PROGRAM, "doctor", "--use_cpu", "--tp", "2"}, env(0));
  const auto results = {first.finish(std::chrono::seconds(60)), second.finish(std::chrono::seconds(60))};
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Program, ABadLauncherVariableIsNamed) {
  expect_refused(megalith({"doctor"}, {{"RANK", "3"},
                                       {"WORLD_SIZE", "2"},
                                       {"LOCAL_RANK", "0"},
                                       {"MASTER_ADDR", "127.0.0.1"},
                                       {"MASTER_PORT", "29500"}}),
                 "RANK is 3 but WORLD_SIZE is 2");
}

}  // namespace
}  // namespace megalith::testing
