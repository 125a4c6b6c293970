// What a step that trains an adapter takes of a step that trains every weight: `megalith train` against PyTorch with
// Hugging Face's transformers and peft, on the same model.
//
//   lora_bench [--shape d256] [--rank 8] [--rounds N] [--steps N] [--bf16] [--megalith PROGRAM]
//
// Rounds alternate: ours full, ours LoRA, theirs full, theirs LoRA. One JSON line with the medians and both ratios. The
// Python of MEGALITH_PYTHON needs torch, transformers and peft; without it only our own numbers.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/peer_process.h"
#include "bench/train_inputs.h"
#include "tests/support/subprocess.h"

namespace megalith::bench {
namespace {

using nlohmann::json;

struct Settings {
  std::string shape = "d256", megalith = MEGALITH_PROGRAM;
  int rank = 8, rounds = 3, steps = 6;
  bool bf16 = false;
};

// Milliseconds of the steps after the first two, the middle one.
double run_ours(const Settings& s, const testing::TempFolder& folder, bool lora) {
  const std::filesystem::path out = folder / "out";
  std::filesystem::remove_all(out);
  std::vector<std::string> words = train_command(s.megalith, s.steps + 2, folder);
  words.push_back(fmt::format("--per_device_train_batch_size={}", kBatch));
  if (lora) {
    words.emplace_back("--finetuning_type=lora");
    words.push_back(fmt::format("--lora_rank={}", s.rank));
  }
  if (s.bf16) words.emplace_back("--bf16");
  const auto result =
      testing::run_process(words, {{"XDG_CACHE_HOME", (folder / "cache").string()}}, std::chrono::minutes(10));
  if (result.exit_code != 0) {
    fmt::print(stderr, "megalith train failed:\n{}\n", result.err);
    std::exit(1);
  }
  std::vector<double> times;
  std::ifstream lines(out / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const json metrics = json::parse(line);
    if (metrics.contains("tokens_per_second") && metrics.at("step").get<int>() > 2)
      times.push_back(1000.0 * kBatch * kLength / metrics.at("tokens_per_second").get<double>());
  }
  return median(times);
}

std::unique_ptr<PeerProcess> start_peer(const Settings& s) {
  if (testing::run_process({peer_python(), "-c", "import torch, transformers, peft"}).exit_code != 0) return nullptr;
  std::vector<std::string> words{peer_python(), LORA_SCRIPT, std::to_string(s.rank), s.bf16 ? "bf16" : "fp32"};
  for (const int number : train_shape(s.shape)) words.push_back(std::to_string(number));
  return std::make_unique<PeerProcess>(words);
}

void run(const Settings& s) {
  const testing::TempFolder folder;
  write_train_inputs("llama", s.shape, folder);
  const auto peer = start_peer(s);
  std::vector<double> ours[2], theirs[2];
  for (int round = 0; round < s.rounds; ++round)
    for (const bool lora : {false, true}) {
      ours[lora].push_back(run_ours(s, folder, lora));
      if (peer)
        theirs[lora].push_back(median(
            peer->ask(fmt::format("{} {}", lora ? "lora" : "full", s.steps)).at("ms").get<std::vector<double>>()));
    }
  json line{{"bench", "lora"},
            {"shape", s.shape},
            {"rank", s.rank},
            {"dtype", s.bf16 ? "bf16" : "fp32"},
            {"full_ms", median(ours[0])},
            {"lora_ms", median(ours[1])},
            {"ratio", median(ours[1]) / median(ours[0])}};
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
  megalith::bench::Settings settings;
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (size_t i = 0; i < words.size(); ++i) {
    const auto value = [&] { return i + 1 < words.size() ? words[++i] : std::string(); };
    if (words[i] == "--shape")
      settings.shape = value();
    else if (words[i] == "--megalith")
      settings.megalith = value();
    else if (words[i] == "--rank")
      settings.rank = std::stoi(value());
    else if (words[i] == "--rounds")
      settings.rounds = std::stoi(value());
    else if (words[i] == "--steps")
      settings.steps = std::stoi(value());
    else if (words[i] == "--bf16")
      settings.bf16 = true;
  }
  megalith::bench::run(settings);
  return 0;
}
