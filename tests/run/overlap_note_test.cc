// A run says so if an overlap that it asks for cannot be: products that are too small for tp_comm_overlap, steps with
// too few micro-batches for overlap_moe_expert_parallel_comm.
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

// The note of a run on four ranks that overlaps the exchanges of experts.
std::string expert_note_of(std::vector<std::string> words, bool experts = true) {
  words.insert(words.end(), {"--overlap_moe_expert_parallel_comm", "--ep=2", "--per_device_train_batch_size=1"});
  const auto args = config::derive(config::parse_arguments(config::Dialect::kTrain, words).args).args;
  model::ModelConfig model;
  if (experts) model.moe.emplace();
  return expert_overlap_note(run_settings(args, {.size = 4}), model);
}

TEST(OverlapNote, NamesStepsWithTooFewMicrobatches) {
  const std::string accumulation = "--gradient_accumulation_steps=";
  testing::expect_contains(expert_note_of({}),
                           "a step has too few micro-batches (1) for a forward to run together with a backward");
  EXPECT_EQ(expert_note_of({accumulation + "2"}), "");
  EXPECT_EQ(expert_note_of({"--pp=2", "--vpp=2", accumulation + "4"}), "");
  testing::expect_contains(expert_note_of({accumulation + "2"}, /*experts=*/false), "the model has no experts");
}

}  // namespace
}  // namespace megalith::run
