#include "tests/faults/fault_job.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/support/free_port.h"

namespace megalith::testing {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr double kShortestLimit = 3;  // seconds

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Processes below `pid` that have no children: what was started in the end.
void add_leaves(pid_t pid, std::vector<pid_t>& found) {
  const std::vector<pid_t> children = children_of(pid);
  if (children.empty()) found.push_back(pid);
  for (const pid_t child : children) add_leaves(child, found);
}

}  // namespace

std::string python_with_torch() {
  const char* python = std::getenv("MEGALITH_PYTHON");
  if (python == nullptr) return "";
  return run_process({python, "-c", "import torch.distributed.run"}).exit_code == 0 ? python : "";
}

FaultBench::FaultBench(std::string program, fs::path model) : program_(std::move(program)), model_(std::move(model)) {
  std::ofstream data(folder_ / "data.jsonl");
  for (int i = 0; i < 64; ++i) {
    json ids = json::array();
    for (int t = 0; t < 40 + i % 17; ++t) ids.push_back((i * 7 + t * 13) % 60 + 2);
    data << json{{"input_ids", ids}, {"labels", ids}}.dump() << "\n";
  }
  data.close();
  const auto start = std::chrono::steady_clock::now();
  run_reference("reference", {});
  reference_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

fs::path FaultBench::run_reference(const std::string& name, const std::vector<std::string>& more) const {
  const ProcessResult result = run_process(words(folder_ / name, more), env(), std::chrono::seconds(300));
  if (result.exit_code != 0) {
    std::fprintf(stderr, "the undisturbed job failed:\n%s\n", result.err.c_str());
    std::exit(1);
  }
  return folder_ / name;
}

std::vector<std::string> FaultBench::words(const fs::path& output, const std::vector<std::string>& more) const {
  std::vector<std::string> all{program_,
                               "train",
                               "--nproc=2",
                               "--use_cpu",
                               "--finetuning_type=full",
                               "--model_name_or_path=" + model_.string(),
                               "--dataset=" + (folder_ / "data.jsonl").string(),
                               "--output_dir=" + output.string(),
                               "--per_device_train_batch_size=4",
                               "--gradient_accumulation_steps=4",
                               "--calculate_per_token_loss",
                               "--hidden_dropout=0.1",
                               "--max_steps=80",
                               "--learning_rate=1e-3",
                               "--logging_steps=1",
                               "--save_strategy=steps",
                               "--save_steps=5",
                               "--ft_num_warmup_iters=1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<std::string> FaultBench::short_limits() const {
  const std::string seconds = std::to_string(std::max(kShortestLimit, reference_seconds_ / 2));
  return {"--rank_section_timeouts=setup:60,step:" + seconds + ",checkpointing:" + seconds,
          "--rank_out_of_section_timeout=" + seconds};
}

std::vector<std::string> FaultBench::torchrun_words(const fs::path& output,
                                                    const std::vector<std::string>& more) const {
  std::string agent = python_with_torch() +
                      " -m torch.distributed.run --nnodes=2 --nproc_per_node=1 --max_restarts=3 --rdzv_backend=c10d"
                      " --rdzv_id=faults --rdzv_endpoint=127.0.0.1:" +
                      std::to_string(free_port()) + " --no_python";
  for (const std::string& word : words(output, more))
    if (word != "--nproc=2") agent += " '" + word + "'";
  // Two ranks share this machine: each takes the threads that --nproc would give it.
  return {"bash", "-c", "export OMP_NUM_THREADS=1; " + agent + " & first=$!; " + agent + " & wait $first && wait $!"};
}

fs::path FaultBench::scratch(const std::string& name) const { return folder_ / name; }

bool FaultBench::equal_weights(const fs::path& output, const fs::path& reference) {
  const std::string expected = bytes_of(reference / "model.safetensors");
  return !expected.empty() && expected == bytes_of(output / "model.safetensors");
}

FaultJob::FaultJob(const FaultBench& bench, const std::string& name, const std::vector<std::string>& more,
                   std::map<std::string, std::string> env, FaultLauncher launcher)
    : output_(bench.scratch(name)),
      launcher_(launcher),
      process_(launcher == FaultLauncher::kOwn ? bench.words(output_, more) : bench.torchrun_words(output_, more), [&] {
        env.merge(bench.env());
        return env;
      }()) {}

std::vector<pid_t> FaultJob::ranks() const {
  if (launcher_ == FaultLauncher::kOwn) return children_of(process_.pid());
  std::vector<pid_t> found;
  add_leaves(process_.pid(), found);
  return found;
}

bool FaultJob::signal_rank(size_t rank, int number) const {
  const auto all = ranks();
  return rank < all.size() && ::kill(all[rank], number) == 0;
}

bool FaultJob::wait_for_text(const std::string& text, double seconds) {
  return process_.wait_for_text(text, std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
}

bool FaultJob::wait_for_steps(double seconds) {
  if (!wait_for_text("step 1/")) return false;
  return !wait_for_text("\n(no such text)", seconds);
}

std::string FaultJob::trigger_file(const FaultBench& bench, const std::string& name) {
  return bench.scratch(name + ".trigger").string();
}

ProcessResult FaultJob::finish(std::chrono::seconds limit) { return process_.finish(limit); }

std::optional<double> last_metric(const fs::path& output, const std::string& name) {
  std::optional<double> found;
  std::ifstream file(output / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const json object = json::parse(line, nullptr, false);
    if (object.is_object() && object.contains(name) && object[name].is_number()) found = object[name].get<double>();
  }
  return found;
}

}  // namespace megalith::testing
