// A run with tp_comm_overlap says so if its products are too small for it.
#include <gtest/gtest.h>

#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/resolve/run_settings.h"
#include "tests/support/expect.h"

namespace megalith::run {
namespace {

// The note of a run with micro-batches of `length` tokens.
std::string note_of(int64_t length, std::vector<std::string> words, at::Device device = at::kCUDA) {
  for (const std::string& word :
       {std::string("--tp=2"), std::string("--sequence_parallel"), std::string("--finetuning_type=full"),
        std::string("--per_device_train_batch_size=1"), "--cutoff_len=" + std::to_string(length)})
    words.push_back(word);
  const auto args = config::derive(config::parse_arguments(config::Dialect::kTrain, words).args).args;
  model::ModelConfig model;
  model.family = "llama";
  model.hidden_size = 4096;
  return overlap_note(run_settings(args, {.size = 2}), model, device);
}

TEST(OverlapNote, NamesMicrobatchesThatAreTooSmall) {
  testing::expect_contains(note_of(1024, {"--tp_comm_overlap"}),
                           "micro-batches of 1024 tokens at hidden_size 4096 are too small to be sliced");
  EXPECT_EQ(note_of(2048, {"--tp_comm_overlap"}), "") << "two slices of 4 Mi results";
  EXPECT_EQ(note_of(1024, {"--tp_comm_overlap", "--tp_comm_overlap_slices=2"}), "");
  EXPECT_EQ(note_of(1024, {"--tp_comm_overlap"}, at::kCPU), "") << "the CPU has no waves to fill";
  EXPECT_EQ(note_of(1024, {}), "");
}

}  // namespace
}  // namespace megalith::run
