// Measures the time from exec to the end of the first training step: `megalith train` against Hugging Face's Trainer,
// which torchrun starts when there are several ranks.
//
//   first_step_bench [--arch llama] [--shape d256] [--runs N] [--megalith PROGRAM]
//
// Both train a model with random weights on the same number of tokens, with 1 and 4 data-parallel ranks on the CPU. The
// programs alternate. Prints one JSON line with the medians per number of ranks. The peer runs with the Python in
// MEGALITH_PYTHON (torch, transformers, accelerate).
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "bench/options.h"
#include "bench/peer_process.h"
#include "bench/train_inputs.h"
#include "tests/support/subprocess.h"

namespace megalith::bench {
namespace {

struct Settings {
  std::string arch = "llama", shape = "d256", megalith = MEGALITH_PROGRAM;
  int runs = 5;
  bool has_peer = testing::run_process({peer_python(), "-c", "import transformers, accelerate"}).exit_code == 0;
};

void compare(const Settings& s, int ranks, const testing::TempFolder& folder) {
  std::vector<std::string> ours = train_command(s.megalith, 1, folder), theirs{peer_python()};
  ours.push_back(fmt::format("--per_device_train_batch_size={}", kBatch / ranks));
  ours.emplace_back("--overwrite_output_dir");
  if (ranks > 1) {
    ours.push_back(fmt::format("--nproc={}", ranks));
    theirs.insert(theirs.end(), {"-m", "torch.distributed.run", fmt::format("--nproc_per_node={}", ranks)});
  }
  theirs.insert(theirs.end(), {FIRST_STEP_SCRIPT, s.arch});
  for (const int size : train_shape(s.shape)) theirs.push_back(std::to_string(size));

  std::vector<double> our_times, their_times;
  for (int run = -1; run < s.runs; ++run) {  // the first brings files into memory
    const double us = time_to("step 1/1", ours).text, them = s.has_peer ? time_to("first step", theirs).text : 0;
    if (run < 0) continue;
    our_times.push_back(us);
    their_times.push_back(them);
  }
  nlohmann::ordered_json line{{"bench", "first_step"}, {"arch", s.arch}, {"shape", s.shape},
                              {"ranks", ranks},        {"runs", s.runs}, {"megalith_s", median(our_times)}};
  if (s.has_peer) {
    line["hf_trainer_s"] = median(their_times);
    line["ratio"] = median(their_times) / median(our_times);
  } else {
    line["note"] = "no Python with transformers and accelerate in MEGALITH_PYTHON: no comparison";
  }
  fmt::print("{}\n", line.dump());
}

Settings parse(int argc, char** argv) {
  Settings s;
  read_options(argc, argv,
               {{"--arch", &s.arch}, {"--shape", &s.shape}, {"--runs", &s.runs}, {"--megalith", &s.megalith}});
  s.runs = std::max(1, s.runs);
  return s;
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) try {
  const megalith::bench::Settings settings = megalith::bench::parse(argc, argv);
  const megalith::testing::TempFolder folder;
  megalith::bench::write_train_inputs(settings.arch, settings.shape, folder);
  for (const int ranks : {1, 4}) megalith::bench::compare(settings, ranks, folder);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
