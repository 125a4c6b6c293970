// Measures the time of a step that trains an adapter relative to one that trains every weight: `megalith train` against
// PyTorch with Hugging Face's transformers and peft, on the same model.
//
//   lora_bench [--shape d256] [--rank 8] [--rounds N] [--steps N] [--dtype fp32|bf16] [--megalith PROGRAM]
//
// Rounds alternate: ours full, theirs full, ours LoRA, theirs LoRA. Prints one JSON line with the medians, both ratios
// and the peak memory of our runs. The Python in MEGALITH_PYTHON needs torch, transformers and peft; without it, only
// our own numbers are printed.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/options.h"
#include "bench/peer_process.h"
#include "bench/train_inputs.h"
#include "tests/support/subprocess.h"

namespace megalith::bench {
namespace {

using nlohmann::json;

struct Settings {
  std::string shape = "d256", dtype = "fp32", megalith = MEGALITH_PROGRAM;
  int rank = 8, rounds = 3, steps = 6;
};

struct OwnRun {
  double ms = 0;        // median of the steps after the first two
  double peak_mib = 0;  // peak of the whole run
};

OwnRun run_ours(const Settings& s, const testing::TempFolder& folder, bool lora) {
  const std::filesystem::path out = folder / "out";
  std::filesystem::remove_all(out);
  std::vector<std::string> words = train_command(s.megalith, s.steps + 2, folder);
  words.push_back(fmt::format("--per_device_train_batch_size={}", kBatch));
  if (lora) {
    words.emplace_back("--finetuning_type=lora");
    words.push_back(fmt::format("--lora_rank={}", s.rank));
  }
  if (s.dtype == "bf16") words.emplace_back("--bf16");
  const auto result =
      testing::run_process(words, {{"XDG_CACHE_HOME", (folder / "cache").string()}}, std::chrono::minutes(10));
  if (result.exit_code != 0) {
    fmt::print(stderr, "megalith train failed:\n{}\n", result.err);
    std::exit(1);
  }
  std::vector<double> times;
  double peak = 0;
  std::ifstream lines(out / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const json metrics = json::parse(line);
    peak = std::max(peak, metrics.value("memory", 0.0));
    if (metrics.contains("tokens_per_second") && metrics.at("step").get<int>() > 2)
      times.push_back(1000.0 * kBatch * kLength / metrics.at("tokens_per_second").get<double>());
  }
  return {median(times), peak / (1 << 20)};
}

std::unique_ptr<PeerProcess> start_peer(const Settings& s) {
  if (testing::run_process({peer_python(), "-c", "import torch, transformers, peft"}).exit_code != 0) return nullptr;
  std::vector<std::string> words{peer_python(), LORA_SCRIPT, std::to_string(s.rank), s.dtype};
  for (const int number : train_shape(s.shape)) words.push_back(std::to_string(number));
  return std::make_unique<PeerProcess>(words);
}

void run(const Settings& s) {
  const testing::TempFolder folder;
  write_train_inputs("llama", s.shape, folder);
  const auto peer = start_peer(s);
  std::vector<double> ours[2], theirs[2];
  double peak_mib[2] = {0, 0};
  for (int round = 0; round < s.rounds; ++round)
    for (const bool lora : {false, true}) {
      const OwnRun own = run_ours(s, folder, lora);
      ours[lora].push_back(own.ms);
      peak_mib[lora] = own.peak_mib;
      if (peer)
        theirs[lora].push_back(median(
            peer->ask(fmt::format("{} {}", lora ? "lora" : "full", s.steps)).at("ms").get<std::vector<double>>()));
    }
  json line{{"bench", "lora"},
            {"shape", s.shape},
            {"rank", s.rank},
            {"dtype", s.dtype},
            {"full_ms", median(ours[0])},
            {"lora_ms", median(ours[1])},
            {"ratio", median(ours[1]) / median(ours[0])},
            {"full_peak_mib", peak_mib[0]},
            {"lora_peak_mib", peak_mib[1]}};
  if (peer) {
    line["peer_full_ms"] = median(theirs[0]);
    line["peer_lora_ms"] = median(theirs[1]);
    line["peer_ratio"] = median(theirs[1]) / median(theirs[0]);
  }
  fmt::print("{}\n", line.dump());
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) {
  megalith::bench::Settings s;
  megalith::bench::read_options(argc, argv,
                                {{"--shape", &s.shape},
                                 {"--dtype", &s.dtype},
                                 {"--rank", &s.rank},
                                 {"--rounds", &s.rounds},
                                 {"--steps", &s.steps},
                                 {"--megalith", &s.megalith}});
  megalith::bench::run(s);
  return 0;
}
