// cpu_offloading in pretrain: the same losses in every layout in which it is allowed.
#include <gtest/gtest.h>

#include "megalith/run/pretrain.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {
namespace {

using Words = std::vector<std::string>;

// Wide enough for activations that are worth moving.
const Words kWide{"--num-layers=3",
                  "--hidden-size=128",
                  "--num-attention-heads=4",
                  "--seq-length=1024",
                  "--max-position-embeddings=1024",
                  "--position-embedding-type=rope",
                  "--normalization=RMSNorm",
                  "--swiglu",
                  "--disable-bias-linear",
                  "--hidden-dropout=0.1",
                  "--attention-dropout=0",
                  "--vocab-size=63",
                  "--tokenizer-type=NullTokenizer",
                  "--mock-data",
                  "--micro-batch-size=1",
                  "--global-batch-size=2",
                  "--train-iters=2",
                  "--lr=0.01",
                  "--log-interval=1",
                  "--eval-iters=1",
                  "--use-cpu"};

struct OffloadRun {
  std::vector<double> losses;
  int64_t bytes = 0;  // sent to the host by rank 0
};

OffloadRun run_wide(Words more, int ranks) {
  more.insert(more.begin(), kWide.begin(), kWide.end());
  OffloadRun outcome;
  run_ranks(ranks, [&](const Rank& r) {
    struct Sent : train::TrainerCallback {
      Sent(const model::VirtualModels& models, int64_t& into) : models_(models), into_(into) {}
      void on_train_end(train::TrainerEvent&) override { into_ = models_[0].offloaded_bytes(); }
      const model::VirtualModels& models_;
      int64_t& into_;
    };
    int64_t bytes = 0;
    const auto context = run::initialize_megatron(more, {.world = &r.world});
    const auto output = run::pretrain(*context, {.callbacks = [&](run::RunContext&, model::VirtualModels& models) {
      std::vector<std::unique_ptr<train::TrainerCallback>> callbacks;
      callbacks.push_back(std::make_unique<Sent>(models, bytes));
      return callbacks;
    }});
    if (r.rank != 0) return;
    outcome.bytes = bytes;
    for (const train::MetricList& line : output.state.log_history)
      for (const char* name : {"loss", "grad_norm"})
        if (const auto value = line.find(name)) outcome.losses.push_back(*value);
  });
  return outcome;
}

TEST(CpuOffloading, ChangesNoBitInAnyLayout) {
  const Words experts{"--num-experts=4", "--moe-router-topk=2", "--moe-aux-loss-coeff=0.01", "--moe-grouped-gemm"};
  Words experts_of_two = experts;
  experts_of_two.emplace_back("--expert-model-parallel-size=2");
  Words experts_beside = experts_of_two;  // with the micro-batches of a step two by two
  experts_beside.insert(experts_beside.end(), {"--overlap-moe-expert-parallel-comm", "--global-batch-size=6"});
  const std::vector<std::pair<int, Words>> layouts{
      {1, {}},
      {2, {"--tensor-model-parallel-size=2", "--sequence-parallel"}},
      {2, {"--context-parallel-size=2"}},
      {2, {"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"}},
      {1, experts},
      {2, experts_of_two},
      {2, experts_beside}};
  for (const auto& [ranks, words] : layouts) {
    SCOPED_TRACE(words.empty() ? "one rank" : words.front() + " and " + words.back());
    const OffloadRun kept = run_wide(words, ranks);
    EXPECT_EQ(kept.bytes, 0);
    ASSERT_GE(kept.losses.size(), 4U);
    Words offloading = words;
    offloading.emplace_back("--cpu-offloading-num-layers=2");
    const OffloadRun offloaded = run_wide(offloading, ranks);
    EXPECT_EQ(offloaded.losses, kept.losses);
    // Two layers, two steps, and at least the layer's input and one more stream of that size.
    EXPECT_GT(offloaded.bytes, 2 * 2 * 2 * (1024 * 128 * 4) / ranks);
  }
}

TEST(CpuOffloading, WithoutANumberAllLayersButTheLast) {
  const OffloadRun all = run_wide({"--cpu-offloading"}, 1), two = run_wide({"--cpu-offloading-num-layers=2"}, 1);
  EXPECT_EQ(all.bytes, two.bytes);
  EXPECT_GT(all.bytes, 0);
}

}  // namespace
}  // namespace megalith::testing
