// The end of a job over NCCL when one of its ranks dies, stops, runs out of memory, is stuck on its device or does
// something else than the others: all ranks end within their limits, say who and what, and leave nothing behind; and
// with --max_restarts the job ends with the bits of one that nothing happened to.
//
// tests/faults has all kinds of faults over Gloo on the CPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "megalith/base/error.h"
#include "tests/nccl/made_once.h"
#include "tests/nccl/memory_run.h"
#include "tests/nccl/rank_case.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr size_t kCulprit = 1;
constexpr seconds kStepLimit{20};  // limits of a step and of an operation; GPUs that many processes share are slow
constexpr seconds kEndLimit{60};   // from the fault until the last process is gone

// A job that communicates all the time and would run for minutes.
Words endless_words(Transport transport, const fs::path& output) {
  RankCase how{.name = "endless", .tp = 2};
  how.layout = {"--max_steps=100000", fmt::format("--ddp_timeout={}", kStepLimit.count()),
                fmt::format("--rank_section_timeouts=setup:120,step:{0},checkpointing:{0}", kStepLimit.count()),
                fmt::format("--rank_out_of_section_timeout={}", kStepLimit.count()), "--ft_num_warmup_iters=1"};
  return case_command(how, transport, output);
}

// The effect of a fault on the job.
struct FaultEnd {
  JobEnd job;
  double told_after = -1;  // seconds from the fault until the culprit was named; below 0: never
  double ended_after = 0;  // until all ranks had ended
  std::string told;        // the line that names it
};

// The first line after `from` with this part; what a simulated fault says of itself does not count.
std::string line_with(const std::string& text, const std::string& part, size_t from = 0) {
  std::istringstream lines(text.substr(std::min(from, text.size())));
  for (std::string line; std::getline(lines, line);)
    if (line.find(part) != std::string::npos && line.find("simulated fault") == std::string::npos) return line;
  return "";
}

// The lines that count: those from now on, or all, where a fault may have struck already.
enum class Lines { kFromNow, kAll };

// Waits for the end after a fault that has just happened, and for the line with `expected` that tells of it.
FaultEnd follow(RankJob& job, int ranks, const std::string& expected, Lines lines = Lines::kFromNow) {
  const double struck = job.seconds();
  std::vector<size_t> said_before;
  for (int rank = 0; rank < ranks; ++rank)
    said_before.push_back(lines == Lines::kAll ? 0 : job.rank(rank).so_far().err.size());
  FaultEnd end;
  const auto look_for_name = [&] {
    for (int rank = 0; rank < ranks && end.told.empty(); ++rank)
      end.told = line_with(job.rank(rank).so_far().err, expected, said_before[static_cast<size_t>(rank)]);
    if (end.told_after < 0 && !end.told.empty()) end.told_after = job.seconds() - struck;
  };
  while (job.any_runs() && job.seconds() - struck < static_cast<double>(kEndLimit.count())) {
    look_for_name();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  end.job = job.finish(seconds(0));
  end.ended_after = end.job.seconds - struck;
  look_for_name();
  return end;
}

// nccl-fault NAME TRANSPORT TOLD_AFTER ENDED_AFTER who was named
void expect_ended(const std::string& name, Transport transport, const FaultEnd& end) {
  fmt::print("nccl-fault {} {} {:.1f} {:.1f} {}\n", name, to_string(transport), end.told_after, end.ended_after,
             end.told.substr(0, 200));
  EXPECT_FALSE(end.told.empty()) << "nobody named the culprit\n" << end.job.story();
  EXPECT_TRUE(end.job.in_time) << end.job.story();
  EXPECT_EQ(end.job.left_behind(), 0);
  for (size_t rank = 0; rank < end.job.ranks.size(); ++rank)
    EXPECT_NE(end.job.ranks[rank].exit_code, 0) << "rank " << rank << " ended well\n" << end.job.story();
}

// ---- Training jobs, a launcher for each rank ------------------------------------------------------------------------

struct TrainingFault {
  std::string name;
  std::string simulated{};  // kind of FT_SIM_FAULT_DESC, or:
  int signal = 0;           // to the culprit
  std::string told{};       // a part of the line that names it
  friend void PrintTo(const TrainingFault& fault, std::ostream* out) { *out << fault.name; }
};

std::vector<TrainingFault> training_faults() {
  return {
      {.name = "killed", .signal = SIGKILL, .told = "rank 1 on machine 1 was killed by signal 9 (SIGKILL)"},
      {.name = "stopped", .signal = SIGSTOP, .told = "rank 1 was stopped (SIGSTOP)"},
      {.name = "out_of_memory", .simulated = "out_of_memory", .told = "rank 1: "},
      {.name = "kernel_stuck", .simulated = "kernel_stuck", .told = "rank 1"},
  };
}

void expect_training_ends(const TrainingFault& fault, Transport transport) {
  const TempFolder folder;
  const std::string trigger = (folder / "trigger").string();
  std::map<int, std::map<std::string, std::string>> own;
  if (!fault.simulated.empty())
    for (const int rank : {0, 1}) own[rank]["FT_SIM_FAULT_DESC"] = fault.simulated + ";1;@" + trigger;
  RankJob job(endless_words(transport, folder / "out"), 2, transport, StartedBy::kLaunchers, own);
  if (!job.wait_for_step(3, seconds(100))) FAIL() << "the job did not run: " << job.finish(seconds(0)).story();
  if (fault.simulated.empty()) {
    const auto processes = children_of(job.rank(int{kCulprit}).pid());
    ASSERT_EQ(processes.size(), 1U);
    ::kill(processes.front(), fault.signal);
  } else {
    std::ofstream(trigger) << "now\n";
  }
  expect_ended(fault.name, transport, follow(job, 2, fault.told));
}

class TrainingFaults : public ::testing::TestWithParam<TrainingFault> {};

TEST_P(TrainingFaults, EndAllRanks) {
  const auto transport = chosen_transport();
  if (!transport) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
  expect_training_ends(GetParam(), *transport);
}

INSTANTIATE_TEST_SUITE_P(Ranks2, TrainingFaults, ::testing::ValuesIn(training_faults()),
                         [](const auto& each) { return each.param.name; });

// Ranks without a launcher, as under torchrun's agents or srun: the ones that are left find out by themselves.
TEST(FaultsWithoutALauncher, AKilledRankIsNamed) {
  const auto transport = chosen_transport();
  if (!transport) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
  const TempFolder folder;
  RankJob job(endless_words(*transport, folder / "out"), 2, *transport);
  if (!job.wait_for_step(3, seconds(100))) FAIL() << "the job did not run: " << job.finish(seconds(0)).story();
  job.rank(int{kCulprit}).signal(SIGKILL);
  const FaultEnd end = follow(job, 1, "rank 1");
  expect_ended("killed_without_launcher", *transport, end);
  expect_contains(end.job.ranks.front().err, " of group ");
}

// The allocator's own refusal, on one rank alone.
TEST(FaultsOnTheGpu, ARankThatRunsOutOfMemoryIsNamed) {
  if (chosen_transport() != Transport::kNccl) GTEST_SKIP() << "needs a GPU";
  const TempFolder folder;
  RankJob job(memory_command(Transport::kNccl, folder / "out"), 2, Transport::kNccl, StartedBy::kLaunchers,
              {{int{kCulprit}, {{"PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:0.008"}}}});
  expect_ended("out_of_memory_of_the_allocator", Transport::kNccl, follow(job, 2, "the device is out of memory"));
}

// NCCL takes one rank per GPU, and says so by hanging or in words of its own.
TEST(FaultsOnTheGpu, TwoRanksOnOneGpuAreRefusedByName) {
  if (chosen_transport() != Transport::kNccl) GTEST_SKIP() << "needs a GPU";
  const TempFolder folder;
  RankJob job(endless_words(Transport::kNccl, folder / "out"), 2, Transport::kNccl, StartedBy::kVariables,
              {{0, {{"NCCL_HOSTID", "one-machine"}}}, {1, {{"NCCL_HOSTID", "one-machine"}}}});
  const JobEnd end = job.finish(seconds(60));
  EXPECT_TRUE(end.in_time);
  const std::string said = end.errors();
  for (const char* part : {"rank 0 (LOCAL_RANK 0", "rank 1 (LOCAL_RANK 0", "use the same GPU", "--ddp_backend gloo"})
    expect_contains(said, part);
  EXPECT_TRUE(end.ranks[0].exit_code == 2 || end.ranks[1].exit_code == 2) << end.story();
}

// ---- Single collectives ---------------------------------------------------------------------------------------------

struct CollectiveFault {
  std::string scenario;
  std::vector<std::string> told;  // parts of what the ranks say
  bool debug = false;             // MEGALITH_COMM_DEBUG
  std::string name() const { return scenario + (debug ? "_debug" : ""); }
  friend void PrintTo(const CollectiveFault& fault, std::ostream* out) { *out << fault.name(); }
};

std::vector<CollectiveFault> collective_faults() {
  const std::string operation = "all_reduce 'test sum' #2";
  return {
      {"peer_gone", {operation, "rank 1"}},
      {"kernel_stuck", {operation, "rank 1"}},
      {"wrong_size", {"of group world"}},
      {"wrong_size", {operation, "float [16777216]", "float [16781312]"}, true},
      {"wrong_sum", {"rank 1 of group world has not started the same operations", operation}},
      {"wrong_sum_once", {"rank 1 of group world has not started the same operations"}},
  };
}

Words scenario_words(const std::string& scenario, Transport transport) {
  return {NCCL_RANK_PROGRAM, scenario, transport == Transport::kNccl ? "nccl" : "gloo"};
}

class CollectiveFaults : public ::testing::TestWithParam<CollectiveFault> {};

void expect_collective_ends(const CollectiveFault& fault, Transport transport) {
  constexpr int kRanks = 3;
  std::map<int, std::map<std::string, std::string>> own;
  for (int rank = 0; rank < kRanks; ++rank)
    own[rank] = {{"TIMEOUT_SECONDS", "12"}, {"MEGALITH_COMM_DEBUG", fault.debug ? "1" : ""}};
  RankJob job(scenario_words(fault.scenario, transport), kRanks, transport, StartedBy::kVariables, own);
  while (job.look() && job.rank(0).so_far().err.find("is ready") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const FaultEnd end = follow(job, kRanks, fault.told.front(), Lines::kAll);
  expect_ended(fault.name(), transport, end);
  std::string others;
  for (size_t rank = 0; rank < kRanks; ++rank)
    if (rank != kCulprit) others += end.job.ranks[rank].err;
  for (const std::string& part : fault.told) expect_contains(others, part);
}

TEST_P(CollectiveFaults, EndAllRanks) {
  const auto transport = chosen_transport();
  if (!transport) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
  expect_collective_ends(GetParam(), *transport);
}

INSTANTIATE_TEST_SUITE_P(Ranks3, CollectiveFaults, ::testing::ValuesIn(collective_faults()),
                         [](const auto& each) { return each.param.name(); });

// ---- Started again --------------------------------------------------------------------------------------------------

constexpr int kStepsAgain = 24, kSavesAgain = 4;

Words restarted_words(Transport transport, const fs::path& output) {
  RankCase how{.name = "again", .tp = 2};
  how.layout = {fmt::format("--max_steps={}", kStepsAgain),
                "--save_strategy=steps",
                fmt::format("--save_steps={}", kSavesAgain),
                "--nproc=2",
                "--max_restarts=2",
                fmt::format("--ddp_timeout={}", kStepLimit.count()),
                fmt::format("--rank_section_timeouts=setup:120,step:{0},checkpointing:{0}", kStepLimit.count()),
                fmt::format("--rank_out_of_section_timeout={}", kStepLimit.count()),
                "--ft_num_warmup_iters=1"};
  return case_command(how, transport, output);
}

// One launcher for both ranks: it gives each an NCCL_HOSTID of its own.
std::map<std::string, std::string> shared_environment(Transport transport) {
  auto env = rank_environment(transport);
  if (transport == Transport::kNccl) env["NCCL_HOSTID"] = "megalith-%r";
  return env;
}

std::string file_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string undisturbed_weights(Transport transport) {
  const fs::path folder = made_once("undisturbed-" + to_string(transport), [&](const fs::path& empty) {
    Words words = restarted_words(transport, empty);
    words.emplace_back("--overwrite_output_dir=true");
    const ProcessResult result = run_process(words, shared_environment(transport), seconds(120));
    check(result.exit_code == 0, "the undisturbed job failed:\n{}", result.err);
  });
  return file_bytes(folder / "model.safetensors");
}

void expect_same_bits_after(const TrainingFault& fault, Transport transport) {
  const std::string expected = undisturbed_weights(transport);
  ASSERT_FALSE(expected.empty());
  const TempFolder folder;
  const std::string trigger = (folder / "trigger").string();
  auto env = shared_environment(transport);
  if (!fault.simulated.empty()) env["FT_SIM_FAULT_DESC"] = fault.simulated + ";1;@" + trigger;
  Subprocess job(restarted_words(transport, folder / "out"), env);
  ASSERT_TRUE(job.wait_for_text(fmt::format("step {}/", kSavesAgain + 2), seconds(100))) << job.so_far().err;
  const auto struck = std::chrono::steady_clock::now();
  if (fault.simulated.empty()) {
    const auto ranks = children_of(job.pid());
    ASSERT_EQ(ranks.size(), 2U);
    ::kill(ranks[kCulprit], fault.signal);
  } else {
    std::ofstream(trigger) << "now\n";
  }
  const size_t said_before = job.so_far().err.size();
  EXPECT_TRUE(job.wait_for_text("restart 1 of 2: ", kEndLimit));
  const double seen = std::chrono::duration<double>(std::chrono::steady_clock::now() - struck).count();
  const ProcessResult result = job.finish(seconds(150));
  fmt::print("nccl-fault restart_{} {} {:.1f} {:.1f} {}\n", fault.name, to_string(transport), seen, result.seconds,
             line_with(result.err, "rank 1", said_before).substr(0, 200));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.left_behind, 0);
  EXPECT_FALSE(line_with(result.err, "rank 1", said_before).empty()) << result.err;
  EXPECT_TRUE(file_bytes(folder / "out" / "model.safetensors") == expected) << "other weights than without the fault";
}

class Restarts : public ::testing::TestWithParam<TrainingFault> {};

TEST_P(Restarts, EndWithTheSameBits) {
  const auto transport = chosen_transport();
  if (!transport) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
  expect_same_bits_after(GetParam(), *transport);
}

INSTANTIATE_TEST_SUITE_P(Ranks2, Restarts, ::testing::ValuesIn(training_faults()),
                         [](const auto& each) { return each.param.name; });

// On any machine: what the tests above are made of.
TEST(FaultsOverGloo, EndAllRanksOnTheCpu) {
  expect_training_ends(training_faults().at(0), Transport::kGlooOnCpu);
  for (const size_t each : {3, 4, 5}) expect_collective_ends(collective_faults().at(each), Transport::kGlooOnCpu);
}

}  // namespace
}  // namespace megalith::testing
