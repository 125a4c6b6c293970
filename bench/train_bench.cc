// Measures tokens per second of whole training steps: `megalith train` against PyTorch and Hugging Face on the same
// shapes.
//
//   train_bench [--peers cpu_peers.py] [--shape d256] [--arch llama] [--rounds N] [--steps N] [--megalith PROGRAM]
//
// Rounds alternate between our runs (fp32, bf16, one thread, two data-parallel ranks) and the peers' script, which runs
// unmodified with the Python in MEGALITH_PYTHON (torch, transformers). Prints one JSON line per case of ours (median
// over the rounds) with the ratio to the fastest peer of the same precision. Without --peers, only our own numbers.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/options.h"
#include "bench/peer_process.h"
#include "bench/train_inputs.h"
#include "tests/support/subprocess.h"

namespace megalith::bench {
namespace {

using nlohmann::json;
using testing::ProcessResult;
using testing::run_process;
using testing::TempFolder;

// The words of the command line.
struct Settings {
  std::string peers, shape = "d256", arch = "llama", megalith = MEGALITH_PROGRAM;
  int rounds = 3, steps = 6;
};

// Returns the median tokens per second of the steps after the first two.
double run_ours(const Settings& s, const TempFolder& folder, const std::vector<std::string>& more, int threads) {
  const std::string out = (folder / "out").string();
  std::filesystem::remove_all(out);
  std::vector<std::string> words = train_command(s.megalith, s.steps + 2, folder);
  words.insert(words.end(), more.begin(), more.end());
  std::map<std::string, std::string> env{{"XDG_CACHE_HOME", (folder / "cache").string()}};
  // Zero leaves the choice to the program.
  if (threads > 0) env["OMP_NUM_THREADS"] = std::to_string(threads);
  const ProcessResult result = run_process(words, env, std::chrono::minutes(10));
  if (result.exit_code != 0) {
    fmt::print(stderr, "megalith train failed:\n{}\n", result.err);
    std::exit(1);
  }
  std::vector<double> rates;
  std::ifstream lines(std::filesystem::path(out) / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const json metrics = json::parse(line);
    if (metrics.contains("tokens_per_second") && metrics.at("step").get<int>() > 2)
      rates.push_back(metrics.at("tokens_per_second").get<double>());
  }
  return median(rates);
}

// Returns the share of a step that the trainer adds to forward, backward and optimizer, from the timeline of a run.
double run_overhead(const Settings& s, const TempFolder& folder, const std::string& batch) {
  run_ours(s, folder, {batch, fmt::format("--trace=3-{}", s.steps + 2)}, 0);
  std::ifstream stream(folder / "out" / "trace.json");
  const json trace = json::parse(stream);
  // The last step has no end in the trace, so it is left out on both sides of the fraction.
  double covered = 0, last_covered = 0, first = -1, last = -1;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("ph", "") != "X") continue;
    const std::string name = event.at("name");
    if (name == "forward-backward") {  // a step begins
      last = event.at("ts");
      if (first < 0) first = last;
      last_covered = 0;
    }
    if (name != "forward-backward" && name != "all-grads-sync" && name != "optimizer") continue;
    covered += event.at("dur").get<double>();
    last_covered += event.at("dur").get<double>();
  }
  return 1 - (covered - last_covered) / (last - first);
}

// Tokens per second by variant.
void run_peers(const Settings& s, std::map<std::string, std::vector<double>>& rates) {
  const auto result = run_process({peer_python(), s.peers, "--shapes", s.shape, "--arch", s.arch, "--rounds", "1",
                                   "--steps", std::to_string(s.steps)},
                                  {}, std::chrono::minutes(20));
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_object() && row.contains("tok_s")) rates[row.at("variant")].push_back(row.at("tok_s"));
  }
}

// The peers' names of variants that compute in bf16.
bool is_bf16(const std::string& variant) {
  return variant.find("bf16") != std::string::npos || variant.find("autocast") != std::string::npos ||
         variant.ends_with("-a32");
}

// Returns the fastest peer of a kind.
std::pair<std::string, double> best_of(const std::map<std::string, std::vector<double>>& peers,
                                       const std::function<bool(const std::string&)>& counts) {
  std::pair<std::string, double> best{"", 0};
  for (const auto& [variant, rates] : peers)
    if (counts(variant) && median(rates) > best.second) best = {variant, median(rates)};
  return best;
}

// The ratio is ours over the peer's: above 1 we are faster.
void report(const Settings& s, const std::string& name, const std::vector<double>& ours,
            const std::pair<std::string, double>& peer) {
  json line{
      {"bench", "train"}, {"arch", s.arch}, {"shape", s.shape}, {"case", name}, {"tokens_per_second", median(ours)}};
  if (peer.second > 0) {
    line["peer"] = peer.first;
    line["peer_tokens_per_second"] = peer.second;
    line["ratio"] = median(ours) / peer.second;
  }
  fmt::print("{}\n", line.dump());
}

void run(const Settings& s) {
  const TempFolder folder;
  write_train_inputs(s.arch, s.shape, folder);
  std::map<std::string, std::vector<double>> ours, peers;
  std::vector<double> overheads;
  // Two ranks with half of the batch do the work of one with the whole.
  const std::string whole = fmt::format("--per_device_train_batch_size={}", kBatch);
  const std::string half = fmt::format("--per_device_train_batch_size={}", kBatch / 2);
  for (int round = 0; round < s.rounds; ++round) {
    ours["fp32"].push_back(run_ours(s, folder, {whole}, 0));
    ours["bf16"].push_back(run_ours(s, folder, {whole, "--bf16"}, 0));
    ours["one1"].push_back(run_ours(s, folder, {half}, 1));
    overheads.push_back(run_overhead(s, folder, whole));
    ours["dp2"].push_back(run_ours(s, folder, {half, "--nproc=2", "--overlap_grad_reduce"}, 1));
    if (!s.peers.empty()) run_peers(s, peers);
  }
  const auto is = [](const std::string& start) {
    return [start](const std::string& v) { return v.starts_with(start); };
  };
  report(s, "fp32", ours["fp32"], best_of(peers, [](const std::string& v) {
           return !is_bf16(v) && !v.starts_with("one1") && !v.starts_with("ddp2");
         }));
  report(s, "bf16", ours["bf16"], best_of(peers, is_bf16));
  report(s, "fp32 against hf-trainer", ours["fp32"], best_of(peers, is("hf-trainer")));
  report(s, "one thread", ours["one1"], best_of(peers, is("one1")));
  fmt::print("{}\n", json{{"bench", "train"},
                          {"arch", s.arch},
                          {"shape", s.shape},
                          {"case", "trainer overhead"},
                          {"part_of_step", median(overheads)}}
                         .dump());
  report(s, "two data-parallel ranks", ours["dp2"], best_of(peers, is("ddp2")));
}

Settings parse(int argc, char** argv) {
  Settings s;
  read_options(argc, argv,
               {{"--peers", &s.peers},
                {"--shape", &s.shape},
                {"--arch", &s.arch},
                {"--rounds", &s.rounds},
                {"--steps", &s.steps},
                {"--megalith", &s.megalith}});
  return s;
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) try {
  megalith::bench::run(megalith::bench::parse(argc, argv));
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
