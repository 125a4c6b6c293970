// `megalith train` and `megalith eval` as a person meets them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

// A folder with data, and where runs go. Tokens that runs keep stay in it.
class TrainCommand : public ::testing::Test {
 protected:
  TrainCommand() {
    std::ofstream data(folder_ / "data.jsonl");
    for (int i = 0; i < 40; ++i) {
      json ids = json::array();
      for (int t = 0; t < 6 + i % 5; ++t) ids.push_back((i * 7 + t * 13) % 60 + 2);
      data << json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
    }
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string model(const std::string& name = "llama") { return (golden_dir() / "hf" / name).string(); }

  // Options of every run here; `more` wins.
  Words words(const std::string& output, const Words& more) const {
    Words all{MEGALITH_PROGRAM,
              "train",
              "--finetuning_type=full",
              "--use_cpu",
              "--model_name_or_path=" + model(),
              "--dataset=" + path("data.jsonl"),
              "--output_dir=" + path(output),
              "--per_device_train_batch_size=2",
              "--gradient_accumulation_steps=4",
              "--calculate_per_token_loss",
              "--max_steps=3",
              "--learning_rate=1e-3",
              "--logging_steps=1",
              "--save_strategy=no"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProcessResult train(const std::string& output, const Words& more) const {
    return run_process(words(output, more), {{"XDG_CACHE_HOME", path("cache")}});
  }

  std::vector<json> lines(const std::string& output) const {
    std::vector<json> all;
    std::ifstream file(folder_ / output / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
    return all;
  }
  std::vector<double> losses(const std::string& output) const {
    std::vector<double> all;
    for (const json& line : lines(output))
      if (line.contains("loss")) all.push_back(line.at("loss").get<double>());
    return all;
  }

  TempFolder folder_;
};

TEST_F(TrainCommand, WritesWhatARunWrites) {
  const auto result =
      train("out", {"--eval_strategy=steps", "--eval_steps=2", "--val_size=5", "--report_to=tensorboard"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  for (const char* name : {"config.json", "model.safetensors", "args.yaml", "trainer_state.json", "metrics.jsonl",
                           "loss.svg", "tensorboard"})
    EXPECT_TRUE(fs::exists(folder_ / "out" / name)) << name << "\n" << result.err;
  ASSERT_EQ(losses("out").size(), 3U);
  const json first = lines("out").front();
  for (const char* key : {"step", "loss", "grad_norm", "learning_rate", "tokens_per_second", "token_per_sec_per_gpu",
                          "skipped_iter", "num_zeros_in_grad"})
    EXPECT_TRUE(first.contains(key)) << key;
  EXPECT_TRUE(std::ranges::any_of(lines("out"), [](const json& line) { return line.contains("eval_loss"); }));
  expect_contains(result.err, "step 3/3");
  // At step 2 by eval_steps and once at the end.
  const auto all = lines("out");
  EXPECT_EQ(std::ranges::count_if(all, [](const json& line) { return line.contains("eval_loss"); }), 2);
  expect_contains(result.err, "llama");
}

// Containers often have such a home.
TEST_F(TrainCommand, AHomeThatCannotBeWrittenLosesOnlyTheCache) {
  const auto result = run_process(words("out", {}), {{"XDG_CACHE_HOME", ""}, {"HOME", "/proc"}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.err, "/proc/.cache/megalith/tokens cannot be written");
  expect_contains(result.err, "set XDG_CACHE_HOME");
}

// As the device's allocator reports it, in the middle of a run.
TEST_F(TrainCommand, OutOfMemoryIsOneMessage) {
  const auto result = run_process(words("out", {"--max_steps=100000", "--num_train_epochs=100000"}),
                                  {{"XDG_CACHE_HOME", path("cache")}, {"FT_SIM_FAULT_DESC", "out_of_memory;0;0.5"}});
  EXPECT_EQ(result.exit_code, 1);
  for (const char* part : {"the device is out of memory: ", "planned were", "parameters", "activations",
                           "What would save most: ", "recompute_granularity full", "per_device_train_batch_size 1"})
    expect_contains(result.err, part);
  for (const char* noise : {"frame #", "Exception raised from", "an allocation of the device failed"})
    EXPECT_EQ(result.err.find(noise), std::string::npos) << result.err;
}

TEST_F(TrainCommand, TrainsAnAdapterAndContinues) {
  const Words lora{"--finetuning_type=lora", "--lora_rank=4",  "--nproc=2",     "--tp=2",
                   "--save_strategy=steps",  "--save_steps=2", "--max_steps=4", "--learning_rate=1e-2"};
  const auto whole = train("whole", lora);
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  expect_contains(whole.err, "an adapter of rank 4");
  EXPECT_TRUE(fs::exists(folder_ / "whole" / "adapter_model.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "whole" / "model.safetensors"));
  Words more = lora;
  more.push_back("--resume_from_checkpoint=" + path("whole/checkpoint-2"));
  const auto rest = train("rest", more);
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(losses("rest").back(), losses("whole").back());
  Words full{"--resume_from_checkpoint=" + path("whole/checkpoint-2")};
  expect_contains(train("full", full).err, "finetuning_type lora");
  const auto evaluated =
      run_process({MEGALITH_PROGRAM, "eval", "--use_cpu", "--model", model(), "--adapter_name_or_path", path("whole"),
                   "--eval_dataset", path("data.jsonl"), "--json"},
                  {{"XDG_CACHE_HOME", path("cache")}});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_LT(json::parse(evaluated.out).at("eval_loss").get<double>(), losses("whole").front());
}

TEST_F(TrainCommand, EveryRankKeepsALog) {
  const auto result = train("out", {"--nproc=2", "--tp=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* name : {"rank-0.log", "rank-1.log"}) {
    std::ifstream file(folder_ / "out" / "log" / name);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    expect_contains(text, "tp 2");
    expect_contains(text, "done");
  }
  const auto quiet = train("quiet", {"--log_level=error"});
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_EQ(quiet.err.find(" samples of "), std::string::npos) << quiet.err;
}

TEST_F(TrainCommand, LossesDoNotDependOnTheLayout) {
  const auto expect_same = [&](const std::string& name, const Words& layout) {
    const auto result = train(name, layout);
    ASSERT_EQ(result.exit_code, 0) << name << "\n" << result.err;
    EXPECT_EQ(result.left_behind, 0);
    const auto expected = losses("one"), actual = losses(name);
    ASSERT_EQ(actual.size(), expected.size()) << name;
    for (size_t i = 0; i < actual.size(); ++i)
      EXPECT_LE(std::abs(actual[i] - expected[i]), 1e-5 * expected[i]) << name << " step " << i + 1;
  };
  const auto one = train("one", {"--optimizer=sgd"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  expect_same("tp2pp2", {"--optimizer=sgd", "--nproc=4", "--tp=2", "--pp=2"});
  expect_same("sp_dp", {"--optimizer=sgd", "--nproc=4", "--tp=2", "--sequence_parallel",
                        "--gradient_accumulation_steps=2", "--use_distributed_optimizer", "--overlap_grad_reduce"});
  expect_same("zero_bubble", {"--optimizer=sgd", "--nproc=2", "--pp=2", "--pipeline_schedule=zero_bubble"});
}

// A demand of the model is announced: experts with tensor parallelism need sequence parallelism.
TEST_F(TrainCommand, EvalSaysWhatItHasSwitchedOn) {
  const auto result = run_process(
      {MEGALITH_PROGRAM, "eval", "--use_cpu", "--nproc=2", "--tp=2",
       "--model=" + (golden_dir() / "hf" / "mixtral").string(), "--eval_dataset=" + path("data.jsonl"), "--json"},
      {{"XDG_CACHE_HOME", path("cache")}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.err, "sequence_parallel is switched on");
}

TEST_F(TrainCommand, EvalGivesTheSameNumbersInAnyLayout) {
  const auto eval = [&](const Words& more) {
    Words all{MEGALITH_PROGRAM,
              "eval",
              "--use_cpu",
              "--model=" + model(),
              "--eval_dataset=" + path("data.jsonl"),
              "--json",
              "--per_device_eval_batch_size=3"};
    all.insert(all.end(), more.begin(), more.end());
    const auto result = run_process(all, {{"XDG_CACHE_HOME", path("cache")}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, false);
  };
  const json one = eval({}), four = eval({"--nproc=4", "--tp=2"});
  ASSERT_TRUE(one.is_object() && four.is_object());
  EXPECT_NEAR(one.at("eval_loss").get<double>(), four.at("eval_loss").get<double>(), 1e-5);
  EXPECT_EQ(one.at("eval_token_accuracy"), four.at("eval_token_accuracy"));
}

TEST_F(TrainCommand, InterruptedOnceItSavesAndEndsWell) {
  for (const Words& ranks : {Words{}, Words{"--nproc=2", "--tp=2"}}) {
    const std::string output = ranks.empty() ? "one" : "two";
    Words more{"--max_steps=100000", "--logging_steps=1"};
    more.insert(more.end(), ranks.begin(), ranks.end());
    Subprocess run(words(output, more), {{"XDG_CACHE_HOME", path("cache")}});
    ASSERT_TRUE(run.wait_for_text("step 2/", std::chrono::seconds(60)));
    run.signal(SIGINT);
    const auto result = run.finish(std::chrono::seconds(60));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.left_behind, 0);
    EXPECT_TRUE(fs::exists(folder_ / output / "config.json"));
    expect_contains(result.err, ", then saving; press Ctrl-C again to leave at once");
  }
}

// Slurm's warning before the time limit (sbatch --signal=USR1@120), also when SIGTERM follows.
TEST_F(TrainCommand, AWarningOfTheSchedulerSavesAndEndsWell) {
  for (const Words& ranks : {Words{}, Words{"--nproc=2", "--max_restarts=3"}}) {
    const std::string output = ranks.empty() ? "one" : "two";
    Words more{"--max_steps=100000"};
    more.insert(more.end(), ranks.begin(), ranks.end());
    Subprocess run(words(output, more), {{"XDG_CACHE_HOME", path("cache")}});
    ASSERT_TRUE(run.wait_for_text("step 2/", std::chrono::seconds(60)));
    run.signal(SIGUSR1);
    run.signal(SIGTERM);
    const auto result = run.finish(std::chrono::seconds(60));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.left_behind, 0);
    EXPECT_TRUE(fs::exists(folder_ / output / "config.json"));
    EXPECT_EQ(result.err.find("restart"), std::string::npos) << result.err;
  }
}

TEST_F(TrainCommand, InterruptedTwiceItLeavesAtOnce) {
  Subprocess run(words("out", {"--nproc=2", "--max_steps=100000", "--max_restarts=3"}),
                 {{"XDG_CACHE_HOME", path("cache")}});
  ASSERT_TRUE(run.wait_for_text("step 2/", std::chrono::seconds(60)));
  run.signal(SIGSTOP);  // both arrive before the ranks can end by the first
  run.signal(SIGINT);
  run.signal(SIGTERM);
  run.signal(SIGCONT);
  const auto result = run.finish(std::chrono::seconds(30));
  EXPECT_GT(result.exit_code, 128) << result.err;
  EXPECT_EQ(result.left_behind, 0);
  EXPECT_FALSE(fs::exists(folder_ / "out" / "config.json"));
  EXPECT_EQ(result.err.find("restart"), std::string::npos) << result.err;
}

TEST_F(TrainCommand, BadInputIsRefusedBeforeAnyWork) {
  const auto refused = [&](const Words& more, const Words& parts) {
    const auto result = train("refused", more);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    for (const std::string& part : parts) expect_contains(result.err, part);
  };
  refused({"--model_name_or_path=" + path("nothing")}, {"nothing"});
  refused({"--dataset=nothing.jsonl"}, {"nothing.jsonl"});
  refused({"--output_dir=/proc/none"}, {"output_dir /proc/none"});
  refused({"--max_steps=0", "--num_train_epochs=0"}, {"num_train_epochs"});
  refused({"--global_batch_size=7"}, {"7"});
  refused({"--eval_strategy=steps"}, {"eval_dataset"});
  refused({"--warmup_steps=5"}, {"warmup_steps is 5"});
  refused({"--finetuning_type=lora", "--lora_target=q_prj"}, {"lora_target", "did you mean q_proj"});
  refused({"--finetuning_type=lora", "--lora_rank=0"}, {"lora_rank"});
  refused({"--finetuning_type=lora", "--adapter_name_or_path=nowhere"}, {"there is no adapter nowhere"});
  refused({"--nproc=2", "--tp=3"}, {"does not divide world_size 2"});
  refused({"--max_restarts=2"}, {"--max_restarts needs --nproc"});
  refused({"--nproc=2", "--max_restarts=-1"}, {"--max_restarts is -1"});
  refused({"--nproc=2", "--rank_section_timeouts=epoch:3"}, {"rank_section_timeouts", "epoch:3"});
  refused({"--nproc=2", "--nnodes=2", "--master_port=29999", "--max_restarts=2"}, {"torchrun"});
  // Conversations need a tokenizer and a template.
  std::ofstream(folder_ / "chat.jsonl")
      << R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";
  refused({"--dataset=" + path("chat.jsonl")}, {"tokenizer"});
  // An existing file stays.
  fs::create_directories(folder_ / "full");
  std::ofstream(folder_ / "full" / "notes.txt") << "mine";
  refused({"--output_dir=" + path("full")}, {"resume_from_checkpoint", "overwrite_output_dir"});
  EXPECT_TRUE(fs::exists(folder_ / "full" / "notes.txt"));
}

// Tokens per step by the rates of the end summary, "done  6 steps in 0:00:01 (8.13 steps/s, 16.6k tokens/s, …)".
double tokens_per_step(const std::string& text) {
  std::smatch rates;
  if (!std::regex_search(text, rates, std::regex(R"(\(([0-9.]+) steps/s, ([0-9.]+)(k?) tokens/s)"))) return 0;
  return std::stod(rates[2]) * (rates[3] == "k" ? 1000 : 1) / std::stod(rates[1]);
}

// Steps of this start by the numbers that a run logs at its end.
double steps_of_rates(const fs::path& metrics) {
  std::ifstream lines(metrics);
  double steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto numbers = nlohmann::json::parse(line);
    if (numbers.contains("train_runtime"))
      steps = numbers.at("train_runtime").get<double>() * numbers.at("train_steps_per_second").get<double>();
  }
  return steps;
}

// A job that was pre-empted is simply started again, as with LLaMA-Factory.
TEST_F(TrainCommand, ContinuesTheRunOfItsOutputFolder) {
  const Words saving{"--save_strategy=steps", "--save_steps=2", "--max_steps=6"};
  ASSERT_EQ(train("run", saving).exit_code, 0);
  const auto expected = losses("run");
  fs::remove_all(folder_ / "run" / "checkpoint-6");
  const auto again = train("run", saving);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  expect_contains(again.err, "holds a run with checkpoints, which continues");
  expect_contains(again.err, "done        2 steps in ");
  EXPECT_NEAR(steps_of_rates(folder_ / "run" / "metrics.jsonl"), 2, 1e-6);
  EXPECT_EQ(losses("run"), expected);
  // A run that is complete has no step left.
  const auto complete = train("run", saving);
  EXPECT_EQ(complete.exit_code, 0) << complete.err;
  EXPECT_EQ(losses("run"), expected);
  Words over = saving;
  over.emplace_back("--overwrite_output_dir");
  const auto started_over = train("run", over);
  ASSERT_EQ(started_over.exit_code, 0) << started_over.err;
  expect_contains(started_over.err, "done        6 steps in ");
  // Killed before its first checkpoint: there is nothing to continue and nothing to lose.
  fs::create_directories(folder_ / "early");
  fs::copy_file(folder_ / "run" / "args.yaml", folder_ / "early" / "args.yaml");
  EXPECT_EQ(train("early", saving).exit_code, 0);
  // Weights without checkpoints are somebody's result.
  fs::create_directories(folder_ / "ended");
  for (const char* file : {"args.yaml", "model.safetensors"})
    fs::copy_file(folder_ / "run" / file, folder_ / "ended" / file);
  const auto ended = train("ended", saving);
  EXPECT_EQ(ended.exit_code, 2);
  expect_contains(ended.err, "is not empty");
}

// Two processes are ended in the middle; two others, then one, continue.
TEST_F(TrainCommand, ContinuesARun) {
  const Words saving{"--save_strategy=steps", "--save_steps=2", "--max_steps=6", "--lr_scheduler_type=linear"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), saving.begin(), saving.end());
    return more;
  };
  const Words two{"--nproc=2", "--gradient_accumulation_steps=2"};
  const auto whole = train("whole", with(two));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  ASSERT_EQ(train("stopped", with(two)).exit_code, 0);
  fs::remove_all(folder_ / "stopped" / "checkpoint-6");
  std::fstream(folder_ / "stopped/checkpoint-4/optimizer.safetensors", std::ios::in | std::ios::out | std::ios::binary)
      .seekp(40000)
      .put('!');
  Words again = two;
  again.emplace_back("--resume_from_checkpoint=auto");
  const auto resumed = train("stopped", with(again));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_contains(resumed.err, "checkpoint-4 is broken");
  expect_contains(resumed.err, "optimizer.safetensors: bytes 0 to");
  expect_contains(resumed.err, "all options are unchanged");
  EXPECT_EQ(losses("stopped"), losses("whole"));
  // The end summary counts what this start has done, from step 2.
  expect_contains(whole.err, "done        6 steps in ");
  expect_contains(resumed.err, "done        4 steps in ");
  ASSERT_GT(tokens_per_step(whole.err), 0);
  EXPECT_NEAR(tokens_per_step(resumed.err) / tokens_per_step(whole.err), 1, 0.2);
  // One rank in place of two, from a folder; the changed options are told.
  fs::remove_all(folder_ / "stopped" / "checkpoint-6");
  const auto alone =
      train("stopped", with({"--resume_from_checkpoint=" + path("whole/checkpoint-4"), "--logging_steps=2"}));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  expect_contains(alone.err, "logging_steps: 1, now 2");
  EXPECT_NEAR(losses("stopped").back(), (losses("whole")[4] + losses("whole")[5]) / 2, 1e-2);
  // The checkpoint is a model.
  const auto evaluated = run_process({MEGALITH_PROGRAM, "eval", "--use_cpu", "--per_device_eval_batch_size=2",
                                      "--model_name_or_path=" + path("whole/checkpoint-6"),
                                      "--eval_dataset=" + path("data.jsonl"), "--output_dir=" + path("evaluated")},
                                     {{"XDG_CACHE_HOME", path("cache")}});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  const auto missing = train("nowhere", with({"--resume_from_checkpoint=true"}));
  EXPECT_EQ(missing.exit_code, 2);
  expect_contains(missing.err, "holds no checkpoint");
}

// ROLL's run_sft_train.sh, paths and length aside.
class PublishedListRun : public TrainCommand {};
TEST_F(PublishedListRun, RollSft) {
  Words words{MEGALITH_PROGRAM, "train", "--nproc", "2", "--use_cpu"};
  std::ifstream file(golden_dir() / "options" / "roll_sft.txt");
  for (std::string line; std::getline(file, line);) {
    const size_t from = line.find('<');
    if (from != std::string::npos) {
      const std::string what = line.substr(from);
      line = line.substr(0, from) + (what == "<dir>"     ? folder_.path().string()
                                     : what == "<name>"  ? "data.jsonl"
                                     : what == "<model>" ? model("qwen3")
                                                         : path("roll"));
    }
    std::istringstream parts(line);
    for (std::string part; parts >> part;) words.push_back(part);
  }
  ASSERT_GT(words.size(), 20U);
  words.push_back("--max_steps=2");
  const auto result = run_process(words, {{"XDG_CACHE_HOME", path("cache")}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(losses("roll").size(), 2U);
  EXPECT_TRUE(fs::exists(folder_ / "roll" / "checkpoint-2" / "config.json"));
}

TEST_F(TrainCommand, ARunThatCannotFitIsRefusedUnlessForced) {
  const Words huge{"--cutoff_len=1000000000"};
  const auto refused = train("huge", huge);
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  expect_contains(refused.err, "of host memory for each rank");
  expect_contains(refused.err, "--force");
  Words forced = huge;
  forced.insert(forced.end(), {"--force", "--max_steps=1", "--overwrite_output_dir"});
  const auto run = train("huge", forced);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_contains(run.err, "started anyway");
}

TEST_F(TrainCommand, ExamplesAreGoodArguments) {
  for (const auto& entry : fs::directory_iterator("examples")) {
    if (entry.path().extension() != ".yaml") continue;
    const auto result = run_process({MEGALITH_PROGRAM, "train", entry.path().string(), "--nproc=8",
                                     "--model_name_or_path=m", "--dataset=d", "--output_dir=o", "--dry_run"});
    EXPECT_EQ(result.exit_code, 0) << entry.path() << "\n" << result.err;
  }
}

}  // namespace
}  // namespace megalith::testing
