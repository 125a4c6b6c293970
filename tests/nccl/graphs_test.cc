// Recorded micro-batches of several ranks on one GPU over NCCL: the numbers of the same layout without graphs.
#include <gtest/gtest.h>

#include "tests/nccl/rank_case.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

const Words kExperts{"--moe_router_load_balancing_type=aux_loss", "--moe_aux_loss_coeff=0.01"};
const Words kHistory{"--fp8_recipe=delayed", "--fp8_amax_history_len=4", "--fp8_amax_compute_algo=max"};
// The masks that the run without graphs draws; others would change the numbers in their first digits.
const Words kDropout{"--hidden_dropout=0.2", "--attention_dropout=0.1"};
const Words kAdapterDropout{"--finetuning_type=lora", "--lora_rank=4", "--lora_target=all", "--lora_dropout=0.2"};
// Four micro-batches: the first waits for parameters, the last reduces gradients, and the others are recorded.
const Words kOverlappedShards{"--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather",
                              "--per_device_train_batch_size=1", "--gradient_accumulation_steps=4"};

std::vector<RankCase> graph_cases() {
  return {
      {.name = "dp2", .dp = 2},
      {.name = "dp2_bf16", .dp = 2, .precision = Precision::kBf16},
      {.name = "dp2_zero1", .dp = 2, .layout = {"--use_distributed_optimizer"}},
      {.name = "dp2_zero1_overlap", .dp = 2, .layout = kOverlappedShards},
      {.name = "dp2_recompute", .dp = 2, .layout = {"--recompute_granularity=full"}},
      {.name = "dp2_dropout", .dp = 2, .run = kDropout},
      {.name = "dp2_experts", .family = "mixtral", .dp = 2, .precision = Precision::kBf16, .run = kExperts},
      {.name = "dp2_fp8", .family = "llama_wide", .dp = 2, .precision = Precision::kFp8, .run = kHistory},
      {.name = "tp2", .tp = 2},
      {.name = "tp2_sp", .tp = 2, .layout = {"--sequence_parallel"}},
      {.name = "tp2_sp_recompute", .tp = 2, .layout = {"--sequence_parallel", "--recompute_granularity=full"}},
      {.name = "tp2_lora", .tp = 2, .run = {"--finetuning_type=lora", "--lora_rank=4", "--lora_target=all"}},
      {.name = "tp2_sp_recompute_dropout",
       .tp = 2,
       .layout = {"--sequence_parallel", "--recompute_granularity=full"},
       .run = kDropout},
      {.name = "tp2_lora_dropout", .tp = 2, .run = kAdapterDropout},
      {.name = "tp2_fp8", .family = "llama_wide", .tp = 2, .precision = Precision::kFp8, .run = kHistory},
      {.name = "cp2_p2p", .cp = 2, .layout = {"--cp_comm_type=p2p"}},
      {.name = "cp2_all_gather", .cp = 2, .layout = {"--cp_comm_type=all_gather"}},
      {.name = "cp2_a2a", .cp = 2, .layout = {"--cp_comm_type=a2a"}},
      {.name = "tp2_dp2_zero1", .tp = 2, .dp = 2, .layout = {"--sequence_parallel", "--use_distributed_optimizer"}},
      {.name = "tp2_cp2", .tp = 2, .cp = 2},
      // Four micro-batches, of which the first runs without graphs.
      {.name = "pp2", .pp = 2},
      {.name = "pp2_bf16", .pp = 2, .precision = Precision::kBf16},
      {.name = "pp2_vpp2", .pp = 2, .layout = {"--vpp=2"}},
      {.name = "pp2_recompute", .pp = 2, .layout = {"--recompute_granularity=full"}},
      {.name = "pp2_dropout", .pp = 2, .run = kDropout},
      {.name = "pp2_recompute_dropout", .pp = 2, .layout = {"--recompute_granularity=full"}, .run = kDropout},
      {.name = "pp2_vpp2_dropout", .pp = 2, .layout = {"--vpp=2"}, .run = kDropout},
      {.name = "pp2_dp2_zero1_overlap",
       .pp = 2,
       .dp = 2,
       .layout = {"--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather"}},
      {.name = "tp2_sp_pp2", .tp = 2, .pp = 2, .layout = {"--sequence_parallel"}},
  };
}

std::vector<RankCase> graph_cases_of(int ranks) {
  std::vector<RankCase> found;
  for (RankCase& each : graph_cases())
    if (each.ranks() == ranks) found.push_back(std::move(each));
  return found;
}

class Graphs : public ::testing::TestWithParam<RankCase> {};

TEST_P(Graphs, ChangeNothing) {
  if (chosen_transport() != Transport::kNccl) GTEST_SKIP() << "graphs need a GPU";
  const RankCase& how = GetParam();
  if (const std::string obstacle = obstacle_of(how, Transport::kNccl); !obstacle.empty()) GTEST_SKIP() << obstacle;
  const TempFolder folder;
  run_job(case_command(how, Transport::kNccl, folder / "plain"), how.ranks(), Transport::kNccl);
  Words words = case_command(how, Transport::kNccl, folder / "graphs");
  words.insert(words.end(), {"--cuda_graph_impl=local", "--cuda_graph_warmup_steps=0", "--log_level=debug"});
  const JobEnd end = run_job(words, how.ranks(), Transport::kNccl);
  expect_agreement(how, Transport::kNccl, difference_of(read_run(folder / "graphs"), read_run(folder / "plain")), end);
  EXPECT_EQ(end.errors().find("cuda_graph_impl"), std::string::npos) << end.errors();  // no word of why not
  for (const ProcessResult& rank : end.ranks) expect_contains(rank.err, "recorded a graph of a micro-batch of ");
}

const auto kGraphsName = [](const auto& each) { return each.param.name; };
INSTANTIATE_TEST_SUITE_P(Ranks2, Graphs, ::testing::ValuesIn(graph_cases_of(2)), kGraphsName);
INSTANTIATE_TEST_SUITE_P(Ranks4, Graphs, ::testing::ValuesIn(graph_cases_of(4)), kGraphsName);

}  // namespace
}  // namespace megalith::testing
