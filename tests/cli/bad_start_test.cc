// Runs that cannot begin, that are stopped before they begin, or that end badly, as a person meets them: each says what
// is wrong once, at once, and with the exit code of docs/faults.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/expect.h"
#include "tests/support/free_port.h"
#include "tests/support/golden.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Words = std::vector<std::string>;

std::string content_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_content(const fs::path& file, const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; }

size_t times_in(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

class BadStart : public ::testing::Test {
 protected:
  BadStart() {
    std::ofstream data(folder_ / "data.jsonl");
    for (int i = 0; i < 40; ++i) {
      json ids = json::array();
      for (int t = 0; t < 6 + i % 5; ++t) ids.push_back((i * 7 + t * 13) % 60 + 2);
      data << json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
    }
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static fs::path golden_model(const std::string& name) { return golden_dir() / "hf" / name; }

  // A copy of a model that a test may damage.
  fs::path copy_of_model(const std::string& name) const {
    fs::copy(golden_model(name), folder_ / "model", fs::copy_options::recursive);
    return folder_ / "model";
  }

  // Later words win.
  Words words(const Words& more) const {
    Words all{MEGALITH_PROGRAM,
              "train",
              "--finetuning_type=full",
              "--use_cpu",
              "--model_name_or_path=" + golden_model("llama").string(),
              "--dataset=" + path("data.jsonl"),
              "--output_dir=" + path("out"),
              "--per_device_train_batch_size=2",
              "--max_steps=3",
              "--logging_steps=1",
              "--save_strategy=no"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::map<std::string, std::string> env() const { return {{"XDG_CACHE_HOME", path("cache")}}; }
  ProcessResult train(const Words& more) const { return run_process(words(more), env()); }

  TempFolder folder_;
};

// Waits until a process has blocked a signal, which it then reads by itself: before that, the signal ends it without a
// word.
void wait_until_blocked(pid_t pid, int signal) {
  const auto blocked = [&] {
    std::ifstream status(fmt::format("/proc/{}/status", pid));
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("SigBlk:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
    return true;  // it has ended
  };
  for (int i = 0; i < 3000 && !blocked(); ++i) std::this_thread::sleep_for(milliseconds(20));
}

// Starts a run, sends the signal once `ready` returns, and expects its end within `limit`. Of three tries the fastest
// counts: a busy machine may delay one of them. Returns how the last one ended.
ProcessResult expect_stopped_at_once(const Words& command, const std::map<std::string, std::string>& env,
                                     const std::function<void(Subprocess&)>& ready, int signal, milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  Clock::duration fastest = Clock::duration::max();
  ProcessResult result;
  for (int tries = 0; tries < 3 && fastest >= limit; ++tries) {
    Subprocess run(command, env);
    ready(run);
    const auto start = Clock::now();
    run.signal(signal);
    result = run.finish(seconds(60));
    fastest = std::min(fastest, Clock::now() - start);
    EXPECT_EQ(result.exit_code, 128 + signal) << result.err;
    EXPECT_EQ(result.left_behind, 0);
    EXPECT_EQ(result.err.find("finishing the"), std::string::npos) << result.err;
  }
  EXPECT_LT(fastest, limit);
  return result;
}

void wait_for_children(Subprocess& run, size_t count) {
  while (run.running() && children_of(run.pid()).size() < count) std::this_thread::sleep_for(milliseconds(20));
}

// ---- Ranks ----

TEST_F(BadStart, FarMoreRanksThanCoresNeedForce) {
  const auto refused = train({"--nproc=5000"});
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  for (const char* part : {"--nproc is 5000", "core", "minutes to start", "Use at most", "--force"})
    expect_contains(refused.err, part);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(BadStart, AMistakeThatEveryRankFindsIsToldOnce) {
  const auto result = train({"--model_name_or_path=" + golden_model("qwen3").string(), "--nproc=8", "--cp=8",
                             "--cp_comm_type=a2a", "--cutoff_len=64", "--force"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_EQ(times_in(result.err, "cp_comm_type a2a cannot deal"), 1U) << result.err;
  // The launcher names the rank that spoke. Rank 0's lines have no prefix.
  const size_t named = result.err.find("megalith: rank ");
  ASSERT_NE(named, std::string::npos) << result.err;
  const std::string rank = result.err.substr(named + 15, 1);
  if (rank != "0") expect_contains(result.err, "[rank " + rank + "] megalith: cp_comm_type");
}

// Nobody listens at port 1, so no rank ever connects.
TEST_F(BadStart, RanksThatNeverConnectTellItOnce) {
  const auto result = train({"--nproc=4", "--nnodes=2", "--node_rank=1", "--master_addr=127.0.0.1", "--master_port=1",
                             "--store_connect_timeout=1", "--force"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(times_in(result.err, "no answer from the store at 127.0.0.1:1"), 1U) << result.err;
}

// Machine 1 is not started.
TEST_F(BadStart, ConnectingSaysWhoIsMissing) {
  std::map<std::string, std::string> variables = env();
  variables["MEGALITH_PROGRESS_MS"] = "100";
  Subprocess run(words({"--nproc=2", "--nnodes=2", "--node_rank=0", "--master_addr=127.0.0.1",
                        "--master_port=" + std::to_string(free_port())}),
                 variables);
  EXPECT_TRUE(run.wait_for_text("2 of 4 have arrived, missing: 2 and 3", seconds(60))) << run.so_far().err;
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish(seconds(60)).exit_code, 143);
}

// ---- Signals before the first step ----

TEST_F(BadStart, ASignalEndsRanksThatWaitForAnotherMachine) {
  for (const char* machine : {"0", "1"}) {
    const auto waiting = [](Subprocess& run) {
      wait_for_children(run, 2);
      for (const pid_t rank : children_of(run.pid())) wait_until_blocked(rank, SIGTERM);
    };
    const auto result = expect_stopped_at_once(words({"--nproc=2", "--nnodes=2", std::string("--node_rank=") + machine,
                                                      "--master_addr=127.0.0.1", "--master_port=29683"}),
                                               env(), waiting, SIGTERM, seconds(2));
    expect_contains(result.err, "before the first step; there was nothing to save");
  }
}

TEST_F(BadStart, ASignalEndsHundredsOfRanksInTheirSetUp) {
  const auto halfway = [](Subprocess& run) { wait_for_children(run, 100); };
  // 2 s, and as much for a busy machine.
  expect_stopped_at_once(words({"--nproc=200", "--force", "--max_steps=100000"}), env(), halfway, SIGINT, seconds(4));
}

// A rank that another launcher has started: it waits for its peer.
TEST_F(BadStart, ASignalEndsARankWithoutOurLauncher) {
  std::map<std::string, std::string> variables = env();
  variables.insert({{"RANK", "0"},
                    {"WORLD_SIZE", "2"},
                    {"LOCAL_RANK", "0"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "127.0.0.1"},
                    {"MASTER_PORT", "29684"}});
  const auto waiting = [](const Subprocess& run) { wait_until_blocked(run.pid(), SIGTERM); };
  const auto result = expect_stopped_at_once(words({}), variables, waiting, SIGTERM, seconds(2));
  expect_contains(result.err, "before the first step");
}

TEST_F(BadStart, AStoppedRunSaysHowToContinue) {
  for (const char* strategy : {"no", "steps"}) {
    const std::string output = path(strategy);
    Subprocess run(words({"--max_steps=100000", std::string("--save_strategy=") + strategy, "--save_steps=100000",
                          "--output_dir=" + output}),
                   env());
    ASSERT_TRUE(run.wait_for_text("step 2/", seconds(60)));
    run.signal(SIGTERM);
    const auto result = run.finish(seconds(60));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string last = result.err.substr(result.err.rfind('\n', result.err.size() - 2) + 1);
    EXPECT_EQ(last.rfind("continue    ", 0), 0U) << result.err;
    expect_contains(last, strategy == std::string("no") ? "not possible" : "run the same command again");
  }
  const auto again =
      train({"--max_steps=1000000", "--save_strategy=steps", "--output_dir=" + path("steps"), "--dry_run"});
  EXPECT_EQ(again.exit_code, 0) << again.err;  // it does continue: a folder of another run would be refused
}

// ---- Weights ----

// In the middle of the file's data, which are floats.
TEST_F(BadStart, NanInWeightsIsNamedInEveryLayout) {
  const fs::path model = copy_of_model("llama");
  const fs::path file = model / "model.safetensors";
  std::string bytes = content_of(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const json tensors = json::parse(bytes.substr(8, header));
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  ASSERT_EQ(tensors.at(name).at("dtype"), "F32");
  const float bad[] = {NAN, HUGE_VALF};
  std::memcpy(bytes.data() + 8 + header + tensors.at(name).at("data_offsets")[0].get<size_t>(), bad, sizeof bad);
  write_content(file, bytes);
  for (const Words& layout :
       {Words{}, Words{"--nproc=2", "--tp=2"}, Words{"--nproc=2"}, Words{"--nproc=2", "--pp=2"}}) {
    Words more{"--model_name_or_path=" + model.string()};
    more.insert(more.end(), layout.begin(), layout.end());
    const auto result = train(more);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(times_in(result.err, "NaN or infinities: " + name + " in model.safetensors (2 values)"), 1U)
        << result.err;
  }
}

TEST_F(BadStart, DamagedWeightsAreFoundBeforeDataIsRead) {
  const fs::path model = copy_of_model("llama");
  const std::string bytes = content_of(model / "model.safetensors");
  write_content(model / "model.safetensors", bytes.substr(0, bytes.size() / 2));
  const auto cut = train({"--model_name_or_path=" + model.string()});
  EXPECT_EQ(cut.exit_code, 2) << cut.err;
  expect_contains(cut.err, "It is cut short");
  EXPECT_EQ(cut.err.find("samples of"), std::string::npos) << cut.err;

  write_content(model / "model.safetensors", bytes);
  json config = json::parse(content_of(model / "config.json"));
  config["intermediate_size"] = config["intermediate_size"].get<int>() * 2;
  write_content(model / "config.json", config.dump());
  const auto misshapen = train({"--model_name_or_path=" + model.string()});
  EXPECT_EQ(misshapen.exit_code, 2) << misshapen.err;
  expect_contains(misshapen.err, "of another shape");
  EXPECT_EQ(misshapen.err.find("samples of"), std::string::npos) << misshapen.err;
}

TEST_F(BadStart, AbsurdSizesAreRefusedAtOnce) {
  const fs::path model = copy_of_model("llama");
  const json config = json::parse(content_of(model / "config.json"));
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"}) {
    json changed = config;
    changed[key] = 1'000'000'000;
    write_content(model / "config.json", changed.dump());
    ProcessResult result;
    double fastest = 60;
    for (int tries = 0; tries < 3 && fastest >= 2; ++tries) {  // a busy machine may delay one of them
      result = train({"--model_name_or_path=" + model.string(), "--train_from_scratch"});
      fastest = std::min(fastest, result.seconds);
    }
    EXPECT_LT(fastest, 2);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    expect_contains(result.err, std::string(key));
    expect_contains(result.err, "no model is larger");
  }
}

TEST_F(BadStart, ACheckpointOfAnotherModelIsRefusedByName) {
  const Words saves{"--save_strategy=steps", "--save_steps=3"};
  Words other = saves;
  other.push_back("--model_name_or_path=" + golden_model("qwen3_moe").string());
  ASSERT_EQ(train(other).exit_code, 0);
  const auto result = train({"--output_dir=" + path("mine"), "--resume_from_checkpoint=" + path("out/checkpoint-3")});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  for (const char* part : {"is of another model", "model_type is qwen3_moe there and llama here", "differ, such as"})
    expect_contains(result.err, part);
  EXPECT_EQ(result.err.find("internal error"), std::string::npos) << result.err;
}

// ---- Ends ----

TEST_F(BadStart, ADivergedRunIsNotBlamedOnTheDevice) {
  const auto result = train({"--nproc=2", "--max_restarts=3", "--learning_rate=1e30", "--max_steps=20",
                             "--lr_scheduler_type=constant", "--save_strategy=steps", "--save_steps=1"});
  EXPECT_EQ(result.exit_code, 17) << result.err;
  for (const char* part : {"training has diverged", "Last good step", "gradient norm", "learning rate 1e+30",
                           "Data of step", "lower learning_rate", "max_grad_norm"})
    expect_contains(result.err, part);
  EXPECT_EQ(result.err.find("another device"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("restart 1"), std::string::npos) << result.err;
  EXPECT_EQ(times_in(result.err, "training has diverged"), 1U) << result.err;
  // The first update has already ruined the parameters.
  expect_contains(result.err, "checkpoint-1 is not written: parameters are NaN, infinite or far too large");
  EXPECT_FALSE(fs::exists(folder_ / "out" / "latest"));
}

// With the check off, steps with a NaN are skipped; none of them becomes a checkpoint to continue from.
TEST_F(BadStart, ACheckpointOfANanStepIsNeverWritten) {
  const auto result = train({"--learning_rate=1e30", "--lr_scheduler_type=constant", "--save_strategy=steps",
                             "--save_steps=1", "--check_for_nan_in_loss_and_grad=false"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  expect_contains(result.err, "checkpoint-3 is not written: the loss or a gradient of step 3 is NaN or infinite");
  for (const char* name : {"latest", "checkpoint-1", "checkpoint-2", "checkpoint-3"})
    EXPECT_FALSE(fs::exists(folder_ / "out" / name)) << name;
}

// A file has the name of the last checkpoint. The run continues, exports its model, and tells a script.
TEST_F(BadStart, AMissingLastCheckpointHasAnExitCode) {
  for (const Words& ranks : {Words{}, Words{"--nproc=2", "--max_restarts=2"}}) {
    const std::string output = ranks.empty() ? "one" : "two";
    fs::create_directories(folder_ / output);
    Words more{"--output_dir=" + path(output), "--save_strategy=steps", "--save_steps=2", "--max_steps=4",
               "--overwrite_output_dir"};
    more.insert(more.end(), ranks.begin(), ranks.end());
    write_content(folder_ / output / "checkpoint-4", "in the way");
    const auto result = train(more);
    EXPECT_EQ(result.exit_code, 3) << result.err;
    expect_contains(result.err, "but the last checkpoint is missing");
    EXPECT_EQ(times_in(result.err, "but the last checkpoint is missing"), 1U) << result.err;
    EXPECT_EQ(result.err.find("restart 1"), std::string::npos) << result.err;
    EXPECT_TRUE(fs::exists(folder_ / output / "model.safetensors"));
    EXPECT_TRUE(fs::exists(folder_ / output / "checkpoint-2"));
  }
}

}  // namespace
}  // namespace megalith::testing
