// Pre-training runs of a tiny model that save on their way, for tests of what they continue from.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "megalith/checkpoint/run_folder.h"
#include "megalith/run/pretrain.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {

using Words = std::vector<std::string>;

inline const Words kRolling{"--num-layers=2",
                            "--hidden-size=32",
                            "--num-attention-heads=4",
                            "--seq-length=16",
                            "--vocab-size=63",
                            "--max-position-embeddings=16",
                            "--mock-data",
                            "--micro-batch-size=1",
                            "--tokenizer-type=NullTokenizer",
                            "--global-batch-size=2",
                            "--lr-decay-style=constant",
                            "--lr=0.01",
                            "--log-interval=1",
                            "--eval-iters=0",
                            "--use-cpu",
                            "--hidden-dropout=0.1",
                            "--override-opt-param-scheduler"};

// The outcome of a run.
struct RollingRun {
  std::vector<double> losses;  // by step, of this process
  int64_t steps = 0;
  std::string log;
};

// Runs on `ranks` threads.
inline RollingRun run_rolling(const Words& more, int ranks = 1) {
  Words words = kRolling;
  words.insert(words.end(), more.begin(), more.end());
  RollingRun outcome;
  ::testing::internal::CaptureStderr();
  run_ranks(ranks, [&](const Rank& r) {
    const auto context = run::initialize_megatron(words, {.world = &r.world});
    const run::PretrainOutput output = run::pretrain(*context);
    if (r.rank != 0) return;
    outcome.steps = output.state.global_step;
    for (const train::MetricList& line : output.state.log_history)
      if (const auto loss = line.find("loss")) outcome.losses.push_back(*loss);
  });
  outcome.log = ::testing::internal::GetCapturedStderr();
  return outcome;
}

// Returns the steps of the checkpoints in a folder.
inline std::vector<int64_t> steps_in(const std::filesystem::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& checkpoint : checkpoint::list_checkpoints(folder)) steps.push_back(checkpoint.step);
  return steps;
}

}  // namespace megalith::testing
