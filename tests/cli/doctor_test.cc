// `megalith doctor` with several ranks, as processes over Gloo.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/expect.h"
#include "tests/support/free_port.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

ProcessResult doctor(std::vector<std::string> words, const std::map<std::string, std::string>& env = {}) {
  words.insert(words.begin(), {MEGALITH_PROGRAM, "doctor"});
  return run_process(words, env);
}

std::map<std::string, std::string> torchrun_variables(int rank, const std::string& port) {
  return {{"RANK", std::to_string(rank)}, {"LOCAL_RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},
          {"LOCAL_WORLD_SIZE", "2"},      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", port}};
}

// Every check passed, every row has its numbers; returns the operations that were timed, as "group operation".
std::set<std::string> expect_good(const json& report) {
  EXPECT_TRUE(report.at("ok").get<bool>());
  for (const auto& check : report.at("checks")) {
    EXPECT_TRUE(check.at("ok").get<bool>()) << check;
    EXPECT_GT(check.at("operations"), 0) << check;
  }
  std::set<std::string> rows;
  for (const auto& link : report.at("links")) {
    rows.insert(fmt::format("{} {}", link.at("group").get<std::string>(), link.at("operation").get<std::string>()));
    EXPECT_GT(link.at("latency_us"), 0) << link;
    if (!link.contains("bytes")) continue;
    EXPECT_NEAR(link.at("algorithm_gb_per_s").get<double>() * link.at("microseconds").get<double>() * 1e3,
                link.at("bytes").get<double>(), 1)
        << link;
  }
  return rows;
}

TEST(Doctor, FourRanksWithTensorsAndStages) {
  const TempFolder folder;
  const auto result = doctor({"--nproc", "4", "--use_cpu", "--tp", "2", "--pp", "2", "--size", "64KiB", "--json",
                              "--output_dir", (folder / "new").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.left_behind, 0);
  const auto report = json::parse(result.out);
  const auto rows = expect_good(report);
  for (const char* row : {"tp all_reduce", "tp all_gather", "tp reduce_scatter", "pp send_recv", "embedding all_reduce",
                          "world all_reduce"})
    EXPECT_TRUE(rows.contains(row)) << row;
  EXPECT_EQ(report.at("links").at(0).at("ranks").size() % 2, 0U);
  EXPECT_EQ(report.at("pairs").size(), 6U);
  const auto& slowest = report.at("slowest_pairs").at(0);
  EXPECT_EQ(slowest.at("pairs"), 6);
  EXPECT_EQ(slowest.at("slowest").at("machines").size(), 2U);
  EXPECT_LE(slowest.at("slowest").at("gb_per_s"), slowest.at("median_gb_per_s"));
  EXPECT_EQ(report.at("checkpoint").at("folder"), (folder / "new").string());
  EXPECT_GT(report.at("checkpoint").at("bytes"), 100'000);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the checkpoint is removed";
  expect_contains(result.err, "doctor: group tp");
  expect_contains(result.err, "doctor: gradient norm");
}

TEST(Doctor, ExpertsAndReplicas) {
  const auto result = doctor({"--nproc", "2", "--use_cpu", "--ep", "2", "--size", "64KiB", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto rows = expect_good(json::parse(result.out));
  for (const char* row : {"dp_cp all_reduce", "intra_dp_cp reduce_scatter", "ep all_to_all", "tp_ep all_to_all"})
    EXPECT_TRUE(rows.contains(row)) << row;
}

TEST(Doctor, TableForPeople) {
  const auto result = doctor({"--nproc", "2", "--use_cpu", "--size", "64KiB"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.out, "are right in every group");
  expect_contains(result.out, "bus GB/s");
  expect_contains(result.out, "optimizer shards");
  expect_contains(result.out, "Slowest: rank 0 (");
}

// Two ranks that were given different folders are two machines that do not share one.
TEST(Doctor, RanksThatDoNotShareTheFolderAreAFailure) {
  const TempFolder folder;
  const std::string port = std::to_string(free_port());
  const auto words = [&](const char* own) {
    return std::vector<std::string>{MEGALITH_PROGRAM, "doctor", "--use_cpu", "--tp",         "2",
                                    "--size",         "4KiB",   "--json",    "--output_dir", (folder / own).string()};
  };
  Subprocess second(words("b"), torchrun_variables(1, port)), first(words("a"), torchrun_variables(0, port));
  const auto zero = first.finish(std::chrono::seconds(60)), one = second.finish(std::chrono::seconds(60));
  EXPECT_EQ(zero.exit_code, 1) << zero.err;
  EXPECT_EQ(one.exit_code, 1) << one.err;
  EXPECT_EQ(one.out, "") << "only rank 0 prints";
  expect_contains(zero.err, "doctor, save and load: ");
  expect_contains(zero.err, "is not the same folder on all machines");
  const auto report = json::parse(zero.out);
  EXPECT_FALSE(report.at("ok").get<bool>());
  for (const auto& check : report.at("checks")) EXPECT_EQ(check.at("ok"), check.at("name") != "save and load") << check;
}

// The same as options of a launcher: what the ranks are asked to do cannot be done.
TEST(Doctor, AFolderThatCannotBeWrittenIsAFailure) {
  const auto result = doctor({"--nproc", "2", "--use_cpu", "--size", "4KiB", "--output_dir", "/dev/null/folder"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  expect_contains(result.err, "doctor, save and load: ");
  expect_contains(result.err, "/dev/null/folder");
  expect_contains(result.out, "FAILED");
}

// A rank that is gone: rank 0 still prints one object, which says why.
TEST(Doctor, ARankThatEndsIsNamedInTheObject) {
  const std::string port = std::to_string(free_port());
  const std::vector<std::string> words{MEGALITH_PROGRAM, "doctor", "--use_cpu", "--size", "256MiB", "--json"};
  Subprocess second(words, torchrun_variables(1, port)), first(words, torchrun_variables(0, port));
  ASSERT_TRUE(first.wait_for_text("doctor: speed of group", std::chrono::seconds(30)));
  second.signal(SIGKILL);
  const auto zero = first.finish(std::chrono::seconds(60));
  EXPECT_EQ(zero.exit_code, 1) << zero.err;
  const auto report = json::parse(zero.out);
  EXPECT_FALSE(report.at("ok").get<bool>());
  EXPECT_NE(report.at("failed").get<std::string>().find("speed of"), std::string::npos) << report;
}

// A machine with two GPUs, made of files. A build with CUDA has its own ways to look for them.
TEST(Doctor, ABuildForTheCpuNamesTheGpusThatItLeavesUnused) {
  const TempFolder devices;
  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl"}) std::ofstream(devices / name) << "";
  const std::map<std::string, std::string> machine{{"MEGALITH_DEVICE_DIR", devices.path().string()},
                                                   {"CUDA_VISIBLE_DEVICES", ""}};
  const auto cuda = json::parse(doctor({"--json"}, machine).out).at("CUDA");
  if (!cuda.at("value").get<std::string>().starts_with("this build is for the CPU")) return;
  expect_contains(cuda.at("value").get<std::string>(), "2 NVIDIA GPUs");
  expect_contains(cuda.at("advice").get<std::string>(), "make build");

  const auto run = doctor({"--nproc", "2", "--size", "4KiB"}, machine);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string warning = "leaves 2 NVIDIA GPUs of this machine unused";
  const size_t place = run.err.find(warning);
  ASSERT_NE(place, std::string::npos) << run.err;
  EXPECT_EQ(run.err.find(warning, place + 1), std::string::npos) << "only rank 0 warns: " << run.err;
  const auto on_cpu = doctor({"--nproc", "2", "--size", "4KiB", "--use_cpu", "true"}, machine);
  EXPECT_EQ(on_cpu.exit_code, 0) << on_cpu.err;
  EXPECT_EQ(on_cpu.err.find("NVIDIA"), std::string::npos) << on_cpu.err;
}

TEST(Doctor, OptionsThatDoNotGoTogetherAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--nproc", "2", "--size", "much"}, "size is \"much\""},
      {{"--nproc", "2", "--size", "1TB"}, "at most 16GiB"},
      {{"--nproc", "2", "--output", "x.yaml"}, "--output is the cluster file of --measure"},
      {{"--measure", "--size", "1MB"}, "leave out --size"},
      {{"--measure", "--json"}, "leave out --json"}};
  for (const auto& [words, part] : cases) {
    const auto result = doctor(words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    expect_contains(result.err, part);
  }
}

}  // namespace
}  // namespace megalith::testing
