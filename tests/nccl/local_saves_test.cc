// Local checkpoints of ranks on a GPU: a rank that has lost its disk gets its part of the state from another rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "megalith/checkpoint/run_folder.h"
#include "tests/cuda/device_run.h"
#include "tests/nccl/rank_job.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 2;

// Returns the command of a pretraining run of eight steps with generated data, which goes to `save`.
Words pretrain_command(Transport transport, const fs::path& save, const Words& more) {
  Words words{MEGALITH_PROGRAM,
              "pretrain",
              "--num-layers=2",
              "--hidden-size=64",
              "--num-attention-heads=4",
              "--seq-length=32",
              "--max-position-embeddings=32",
              "--vocab-size=100",
              "--tokenizer-type=NullTokenizer",
              "--mock-data",
              "--lr=1e-3",
              "--lr-decay-style=constant",
              "--micro-batch-size=2",
              "--global-batch-size=8",
              "--eval-iters=0",
              "--log-interval=1",
              "--use-distributed-optimizer",
              "--save-interval=4",
              "--train-iters=8",
              "--save=" + save.string()};
  for (const Words& part : {transport_words(transport, kRanks), more})
    words.insert(words.end(), part.begin(), part.end());
  return words;
}

// A run that saves at step 4 and, locally, at 2 and 6, ends in its seventh step. Rank 1 comes back without its disk.
void expect_continued_from_copies(Transport transport) {
  const TempFolder whole, broken, disks;
  const Words local{"--non-persistent-ckpt-type=local", "--non-persistent-local-ckpt-dir=" + disks.path().string(),
                    "--non-persistent-save-interval=2", "--replication", "--replication-jump=1"};
  Words broken_off = local, again = local;
  broken_off.emplace_back("--exit-interval=7");
  again.push_back("--load=" + broken.path().string());
  run_job(pretrain_command(transport, whole.path(), {}), kRanks, transport);
  run_job(pretrain_command(transport, broken.path(), broken_off), kRanks, transport);
  fs::remove_all(broken / "checkpoint-7");
  checkpoint::write_tracker(broken / "checkpoint-4");
  fs::remove_all(disks / "rank-00001");
  const JobEnd end = run_job(pretrain_command(transport, broken.path(), again), kRanks, transport);
  expect_contains(end.errors(), "continuing from the local save of step 6; 1 of 2 ranks got their part from another");
  const std::vector<double> expected = read_run(whole.path()).losses, losses = read_run(broken.path()).losses;
  ASSERT_EQ(expected.size(), 8U);
  ASSERT_GE(losses.size(), 2U);
  for (size_t last : {1, 2})
    EXPECT_NEAR(losses[losses.size() - last], expected[8 - last], 1e-5 * expected[8 - last]) << last;
}

TEST(LocalSavesOfRanks, ALostDiskIsReplacedByACopy) {
  const auto transport = chosen_transport();
  if (!transport) GTEST_SKIP() << "no GPU; MEGALITH_NCCL_TESTS=gloo_cpu runs it on the CPU";
  expect_continued_from_copies(*transport);
}

// On any machine.
TEST(LocalSavesOverGloo, ALostDiskIsReplacedByACopyOnTheCpu) { expect_continued_from_copies(Transport::kGlooOnCpu); }

}  // namespace
}  // namespace megalith::testing
