// Jobs that learn their time limits, and jobs whose ranks are restarted in their processes: real runs, broken from
// outside.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/expect.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;
using std::chrono::seconds;

constexpr seconds kLimit{150};  // a job ends within it on a busy machine, too

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Data and jobs of two or four ranks on a small model.
class RecoveryCase : public ::testing::Test {
 protected:
  RecoveryCase() {
    std::ofstream data(folder_ / "data.jsonl");
    for (int i = 0; i < 64; ++i) {
      json ids = json::array();
      for (int t = 0; t < 40 + i % 17; ++t) ids.push_back((i * 7 + t * 13) % 60 + 2);
      data << json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
    }
  }

  Words words(const std::string& output, const Words& more) const {
    Words all{MEGALITH_PROGRAM,
              "train",
              "--use_cpu",
              "--finetuning_type=full",
              std::string("--model_name_or_path=") + MEGALITH_TEST_MODEL,
              "--dataset=" + (folder_ / "data.jsonl").string(),
              "--output_dir=" + (folder_ / output).string(),
              "--per_device_train_batch_size=2",
              "--gradient_accumulation_steps=2",
              "--calculate_per_token_loss",
              "--max_steps=40",
              "--learning_rate=1e-3",
              "--logging_steps=1",
              "--save_strategy=steps",
              "--save_steps=10",
              "--ft_num_warmup_iters=1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // The environment of a job; with `fault`, rank 1 has that fault as soon as the file `trigger` exists.
  std::map<std::string, std::string> env(const std::string& fault = "") const {
    std::map<std::string, std::string> all{{"XDG_CACHE_HOME", (folder_ / "cache").string()}};
    if (!fault.empty()) all["FT_SIM_FAULT_DESC"] = fault + ";1;@" + trigger().string();
    return all;
  }
  fs::path trigger() const { return folder_ / "trigger"; }
  void pull_trigger() const { std::ofstream(trigger()) << "now\n"; }
  // Runs a job to its end, which must be good, and returns what it said.
  std::string run(const std::string& output, const Words& more) const {
    const ProcessResult result = run_process(words(output, more), env(), kLimit);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  }
  fs::path state_file(const std::string& output) const { return folder_ / output / "ft_state.json"; }

  TempFolder folder_;
};

bool wait_for(Subprocess& job, const std::string& text) { return job.wait_for_text(text, seconds(60)); }

// ---- Learned limits -------------------------------------------------------------------------------------------------

class LearnedLimitsRun : public RecoveryCase {
 protected:
  const Words learning_{"--nproc=2", "--calc_ft_timeouts"};
  json sections(const std::string& output) const {
    return json::parse(bytes_of(state_file(output)))["current_timeouts"]["section"];
  }
};

// The same run, while it still runs: the limits that it has learned find a rank that hangs.
TEST_F(LearnedLimitsRun, NameARankThatHangs) {
  run("undisturbed", {"--nproc=2"});
  Words more = learning_;
  more.emplace_back("--max_restarts=1");
  Subprocess job(words("out", more), env("data_stuck"));
  ASSERT_TRUE(wait_for(job, "time limits learned from this run: step")) << job.so_far().err;
  pull_trigger();
  const ProcessResult result = job.finish(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"rank 1 hangs: loading data", "restart 1 of 1", "running again"})
    expect_contains(result.err, part);
  EXPECT_EQ(result.err.find("limit 1800 s"), std::string::npos) << result.err;
  EXPECT_EQ(bytes_of(folder_ / "out" / "model.safetensors"), bytes_of(folder_ / "undisturbed" / "model.safetensors"));
}

TEST_F(LearnedLimitsRun, AreKeptForTheNextStart) {
  run("out", learning_);
  json first = sections("out");
  EXPECT_EQ(first["calculated_sections"], (json{"checkpointing", "step"}));  // nothing was loaded: no set-up
  EXPECT_GE(first["section"]["step"].get<double>(), 5);
  EXPECT_TRUE(first["section"]["setup"].is_null());
  // A limit that could not have been learned here shows that the next start takes it from the file.
  json state = json::parse(bytes_of(state_file("out")));
  state["current_timeouts"]["section"]["section"]["step"] = 7.25;
  std::ofstream(state_file("out")) << state;
  Words more = learning_;
  more.insert(more.end(), {"--resume_from_checkpoint=auto", "--override_opt_param_scheduler", "--max_steps=100000"});
  Subprocess job(words("out", more), env("data_stuck"));
  ASSERT_TRUE(wait_for(job, "step 42/")) << job.so_far().err;
  pull_trigger();
  const ProcessResult hung = job.finish(kLimit);
  EXPECT_EQ(hung.exit_code, 1);
  for (const char* part : {"time limits of ranks from", "step 7.25 s", "rank 1 hangs: loading data"})
    expect_contains(hung.err, part);
  // A start that continued from a checkpoint and ended knows everything.
  more.back() = "--max_steps=80";
  run("out", more);
  const json second = sections("out");
  EXPECT_EQ(second["calculated_sections"], (json{"checkpointing", "setup", "step"}));
  EXPECT_TRUE(second["is_out_of_section_calculated"].get<bool>());
}

TEST_F(LearnedLimitsRun, ADamagedFileCostsItsLimitsOnly) {
  run("out", learning_);
  for (const char* damage : {"{\"current", "[]", R"({"current_timeouts": {"section": {"section": {"step": -1},
       "calculated_sections": ["step"], "is_out_of_section_calculated": false}}})"}) {
    std::ofstream(state_file("out")) << damage;
    Words more = learning_;
    more.insert(more.end(), {"--overwrite_output_dir", "--max_steps=20"});
    const std::string said = run("out", more);
    expect_contains(said, "ft_state.json");
    expect_contains(said, "are learned again");
    EXPECT_EQ(sections("out")["calculated_sections"], (json{"checkpointing", "step"})) << damage;
  }
}

// Each slower step is far above the average of those before, and far below the limit.
TEST_F(LearnedLimitsRun, AllowSlowerStepsAndLongEvaluations) {
  Words more = learning_;
  more.insert(more.end(), {"--eval_strategy=steps", "--eval_steps=15", "--val_size=24", "--save_steps=5"});
  Subprocess job(words("out", more), env("slow"));
  ASSERT_TRUE(wait_for(job, "time limits learned from this run: step")) << job.so_far().err;
  pull_trigger();
  const ProcessResult result = job.finish(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.find("hangs"), std::string::npos) << result.err;
  EXPECT_TRUE(json::parse(bytes_of(state_file("out")))["megalith"]["knows_evaluations"].get<bool>());
}

TEST_F(LearnedLimitsRun, NeedALauncherAndAFolder) {
  const auto refused = [&](const Words& more, const std::string& part) {
    const ProcessResult result = run_process(words("refused", more), env(), kLimit);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    expect_contains(result.err, part);
  };
  refused({"--calc_ft_timeouts"}, "calc_ft_timeouts needs --nproc");
  refused({"--nproc=2", "--calc_ft_timeouts", "--ft_safety_factor=1"}, "ft_safety_factor is 1");
}

// ---- Restarts in processes ------------------------------------------------------------------------------------------

// Four ranks: 0 and 2, 1 and 3 are replicas of each other.
class InProcessRestart : public RecoveryCase {
 protected:
  static Words layout() { return {"--nproc=4", "--tp=2"}; }
  static Words restarting(const Words& more = {}) {
    Words all = layout();
    all.insert(all.end(), {"--inprocess_restart", "--max_restarts=3"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Whether a job ended like the undisturbed one with these words.
  void expect_undisturbed(const std::string& output, Words more = {}) const {
    Words all = layout();
    all.insert(all.end(), more.begin(), more.end());
    run("undisturbed", all);
    const std::string weights = bytes_of(folder_ / "undisturbed" / "model.safetensors");
    EXPECT_FALSE(weights.empty());
    EXPECT_TRUE(weights == bytes_of(folder_ / output / "model.safetensors")) << "weights differ";
  }
  static void expect_good_end(const ProcessResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.left_behind, 0);
  }
  // Processes of a job, and how many of an earlier list are among them.
  static int64_t still_there(const Subprocess& job, const std::vector<pid_t>& before) {
    const std::vector<pid_t> now = children_of(job.pid());
    return std::ranges::count_if(before, [&](pid_t pid) { return std::ranges::count(now, pid) > 0; });
  }
};

// Without a single checkpoint: all that was done is in memory.
TEST_F(InProcessRestart, AnExceptionOnOneRankLosesNoStep) {
  const Words unsaved{"--save_strategy=no"};
  Subprocess job(words("out", restarting(unsaved)), env("exception"));
  ASSERT_TRUE(wait_for(job, "step 12/")) << job.so_far().err;
  const std::vector<pid_t> before = children_of(job.pid());
  ASSERT_EQ(before.size(), 4U);
  pull_trigger();
  ASSERT_TRUE(wait_for(job, "running again")) << job.so_far().err;
  EXPECT_EQ(still_there(job, before), 3);
  EXPECT_EQ(still_there(job, {before[1]}), 0);
  const ProcessResult result = job.finish(kLimit);
  expect_good_end(result);
  for (const char* part : {"rank 1: simulated: an uncaught exception", "restart 1 of 3", "3 of 4 ranks keep their",
                           "with the state in memory; 1 of 4 ranks got theirs from a replica", "goodput"})
    expect_contains(result.err, part);
  expect_undisturbed("out", unsaved);
}

// A kill may hit an update, after which ranks differ; then the newest checkpoint is used.
TEST_F(InProcessRestart, KilledRanksOneAfterTheOther) {
  Subprocess job(words("out", restarting()), env());
  ASSERT_TRUE(wait_for(job, "step 12/")) << job.so_far().err;
  std::vector<pid_t> ranks = children_of(job.pid());
  ASSERT_EQ(ranks.size(), 4U);
  ::kill(ranks[3], SIGKILL);
  ASSERT_TRUE(wait_for(job, "restart 1 of 3")) << job.so_far().err;
  ASSERT_TRUE(wait_for(job, "running again")) << job.so_far().err;
  EXPECT_EQ(still_there(job, ranks), 3);
  ::kill(ranks[0], SIGKILL);
  const ProcessResult result = job.finish(kLimit);
  expect_good_end(result);
  for (const char* part : {"rank 3 was killed by signal 9", "rank 0 was killed by signal 9", "restart 2 of 3",
                           "3 of 4 ranks keep their processes"})
    expect_contains(result.err, part);
  expect_undisturbed("out");
}

// Both ranks that hold the first half of each matrix are gone.
TEST_F(InProcessRestart, WithoutAReplicaTheNewestCheckpointIsUsed) {
  Subprocess job(words("out", restarting()), env());
  ASSERT_TRUE(wait_for(job, "checkpoint-10: ")) << job.so_far().err;
  const std::vector<pid_t> ranks = children_of(job.pid());
  ASSERT_EQ(ranks.size(), 4U);
  for (const pid_t pid : {ranks[0], ranks[2]}) ::kill(pid, SIGSTOP);  // neither reaches an update without the other
  for (const pid_t pid : {ranks[0], ranks[2]}) ::kill(pid, SIGKILL);
  const ProcessResult result = job.finish(kLimit);
  expect_good_end(result);
  expect_contains(result.err, "2 of 4 ranks keep their processes");
  expect_contains(result.err, "the state in memory cannot be used: ");
  expect_contains(result.err, "resuming from ");
  expect_undisturbed("out");
}

TEST_F(InProcessRestart, StateThatReplicasDoNotHaveComesFromTheCheckpoint) {
  const std::pair<std::string, std::string> cases[]{{"--hidden_dropout=0.1", "draws random numbers"},
                                                    {"--use_distributed_optimizer", "split over replicas"}};
  for (const auto& [word, reason] : cases) {
    SCOPED_TRACE(word);
    Subprocess job(words("out" + word, restarting({word})), env("exception"));
    ASSERT_TRUE(wait_for(job, "step 12/")) << job.so_far().err;
    pull_trigger();
    const ProcessResult result = job.finish(kLimit);
    expect_good_end(result);
    expect_contains(result.err, reason);
    expect_undisturbed("out" + word, {word, "--overwrite_output_dir"});
  }
}

// The rank that hangs in its save is killed; the others were interrupted in theirs.
TEST_F(InProcessRestart, AFaultDuringASave) {
  Subprocess job(words("out", restarting({"--rank_section_timeouts=checkpointing:4"})), env("save_stuck"));
  ASSERT_TRUE(wait_for(job, "step 4/")) << job.so_far().err;
  pull_trigger();
  const ProcessResult result = job.finish(kLimit);
  expect_good_end(result);
  for (const char* part : {"rank 1 hangs: in a save", "restart 1 of 3", "ranks keep their processes"})
    expect_contains(result.err, part);
  expect_undisturbed("out");
}

TEST_F(InProcessRestart, MoreFailuresThanAllowedEndTheJob) {
  Words more = restarting({"--max_restarts=1", "--max_steps=100000"});
  Subprocess job(words("out", more), env());
  ASSERT_TRUE(wait_for(job, "step 12/")) << job.so_far().err;
  ::kill(children_of(job.pid())[2], SIGKILL);
  ASSERT_TRUE(wait_for(job, "running again")) << job.so_far().err;
  ::kill(children_of(job.pid())[1], SIGKILL);
  const ProcessResult result = job.finish(kLimit);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.left_behind, 0);
  expect_contains(result.err, "not started again: --max_restarts 1 is used up");
}

TEST_F(InProcessRestart, NeedsALauncherThatRestarts) {
  for (const Words& more : {Words{"--inprocess_restart"}, Words{"--inprocess_restart", "--nproc=2"}}) {
    const ProcessResult result = run_process(words("refused", more), env(), kLimit);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    expect_contains(result.err, "inprocess_restart needs --");
  }
}

// ---- Local checkpoints ----------------------------------------------------------------------------------------------

// The state on the machines' disks is newer than any checkpoint of the run: there is none yet.
TEST_F(RecoveryCase, ARestartContinuesFromLocalCheckpoints) {
  const auto job_words = [&](const std::string& output) {
    return Words{MEGALITH_PROGRAM,
                 "pretrain",
                 "--use-cpu",
                 "--num-layers=2",
                 "--hidden-size=32",
                 "--num-attention-heads=4",
                 "--seq-length=16",
                 "--max-position-embeddings=16",
                 "--vocab-size=63",
                 "--tokenizer-type=NullTokenizer",
                 "--mock-data",
                 "--micro-batch-size=1",
                 "--global-batch-size=2",
                 "--lr=0.01",
                 "--lr-decay-style=constant",
                 "--train-iters=400",
                 "--eval-iters=0",
                 "--log-interval=1",
                 "--hidden-dropout=0.1",
                 "--nproc=2",
                 "--max_restarts=1",
                 "--save=" + (folder_ / output).string(),
                 "--save-interval=400",
                 "--non-persistent-save-interval=5",
                 "--non-persistent-ckpt-type=local",
                 "--non-persistent-local-ckpt-dir=" + (folder_ / ("disk of " + output)).string()};
  };
  const ProcessResult undisturbed = run_process(job_words("undisturbed"), env(), kLimit);
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  Subprocess job(job_words("out"), env());
  ASSERT_TRUE(wait_for(job, "checkpoint-20: ")) << job.so_far().err;
  ::kill(children_of(job.pid())[1], SIGKILL);
  const ProcessResult result = job.finish(kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.err, "continuing from the local save of step ");
  const fs::path weights = fs::path("checkpoint-400") / "model.safetensors";
  EXPECT_EQ(bytes_of(folder_ / "out" / weights), bytes_of(folder_ / "undisturbed" / weights));
}

}  // namespace
}  // namespace megalith::testing
