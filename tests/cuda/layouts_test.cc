// Every kind of parallelism and the main combinations with CUDA tensors: processes, several ranks on one GPU, against
// one rank on the CPU.
#include <gtest/gtest.h>

#include "tests/cuda/device_case.h"
#include "tests/cuda/device_sight.h"

namespace megalith::testing {
namespace {

const Words kLora{"--finetuning_type=lora", "--lora_rank=4", "--lora_target=all"};
const Words kPacked{"--sequence_packing"};
const Words kSequenceParallel{"--sequence_parallel"};
const Words kShards{"--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather"};

// Names become parts of CTest's: letters, digits and underscores.
std::vector<DeviceCase> dense_cases() {
  return {
      {.name = "one"},
      {.name = "tp2", .tp = 2},
      {.name = "tp4_sp", .family = "qwen3", .tp = 4, .layout = kSequenceParallel},
      {.name = "gpt2_tp2_pp2", .family = "gpt2", .tp = 2, .pp = 2},
      {.name = "pp2", .pp = 2},
      {.name = "pp4_overlap", .family = "qwen2", .pp = 4, .layout = {"--overlap_p2p_comm"}},
      {.name = "pp2_vpp2", .pp = 2, .layout = {"--vpp=2"}},
      {.name = "cp2_p2p", .cp = 2, .layout = {"--cp_comm_type=p2p"}},
      {.name = "cp2_a2a", .cp = 2, .layout = {"--cp_comm_type=a2a"}},
      {.name = "cp2_all_gather", .cp = 2, .layout = {"--cp_comm_type=all_gather"}},
      {.name = "cp4_a2a_p2p",
       .cp = 4,
       .layout = {"--cp_comm_type=a2a+p2p", "--hierarchical_context_parallel_sizes", "2", "2"}},
      {.name = "window_dp2", .family = "mistral", .dp = 2},
      {.name = "dp2_shards", .dp = 2, .layout = kShards},
      {.name = "dp2_recompute", .dp = 2, .layout = {"--recompute_granularity=full"}},
      {.name = "tp2_selective",
       .tp = 2,
       .layout = {"--recompute_granularity=selective", "--recompute_modules=core_attn,mlp"}},
      {.name = "packed_dp2", .dp = 2, .run = kPacked},
      {.name = "packed_tp2_cp2", .tp = 2, .cp = 2, .layout = kSequenceParallel, .run = kPacked},
      {.name = "lora_tp2", .tp = 2, .run = kLora},
      {.name = "lora_pp2_dp2", .pp = 2, .dp = 2, .layout = {"--use_distributed_optimizer"}, .run = kLora},
      {.name = "tp2_pp2_dp2",
       .tp = 2,
       .pp = 2,
       .dp = 2,
       .layout = {"--sequence_parallel", "--use_distributed_optimizer"}},
      {.name = "tp2_pp2_vpp2_cp2", .tp = 2, .pp = 2, .cp = 2, .layout = {"--vpp=2"}},
  };
}

std::vector<DeviceCase> expert_cases() {
  return {
      {.name = "moe_one", .family = "qwen3_moe"},
      {.name = "moe_ep2", .family = "mixtral", .dp = 2, .layout = {"--ep=2"}},
      {.name = "moe_ep2_all_gather",
       .family = "qwen2_moe",
       .dp = 2,
       .layout = {"--ep=2", "--moe_token_dispatcher_type=allgather"}},
      {.name = "moe_tp2_ep2_etp1",
       .family = "qwen3_moe",
       .tp = 2,
       .layout = {"--sequence_parallel", "--ep=2", "--etp=1"}},
      {.name = "moe_tp2_etp2_pp2",
       .family = "glm4_moe",
       .tp = 2,
       .pp = 2,
       .layout = {"--sequence_parallel", "--etp=2"}},
      {.name = "moe_pp2_ep2_shards",
       .family = "qwen3_moe",
       .pp = 2,
       .dp = 2,
       .layout = {"--ep=2", "--use_distributed_optimizer"}},
      {.name = "latent_tp2_ep2_dp2",
       .family = "deepseek_v3",
       .tp = 2,
       .dp = 2,
       .layout = {"--sequence_parallel", "--ep=2", "--etp=1"}},
      {.name = "delta_net_tp2", .family = "qwen3_next", .tp = 2, .layout = {"--sequence_parallel", "--etp=2"}},
      {.name = "delta_net_packed_cp2", .family = "qwen3_next", .cp = 2, .run = kPacked},
      {.name = "delta_net_tp2_cp2",
       .family = "qwen3_next",
       .tp = 2,
       .cp = 2,
       .layout = {"--sequence_parallel", "--etp=2", "--cp_comm_type=a2a"}},
      {.name = "moe_packed_cp2_ep2", .family = "qwen3_moe", .cp = 2, .layout = {"--ep=2"}, .run = kPacked},
      {.name = "mtp_packed_cp2", .family = "deepseek_v3_mtp", .cp = 2, .run = kPacked},
      {.name = "mtp_pp2_cp2_ep2", .family = "glm4_moe_mtp", .pp = 2, .cp = 2, .layout = {"--ep=2"}},
  };
}

// Images in files; the patches of a micro-batch are dealt over the ranks of tp and cp.
std::vector<DeviceCase> sight_cases() {
  const Words all{"--freeze_vision_tower=false", "--freeze_multi_modal_projector=false"};
  const auto with = [&all](Words more) {
    more.insert(more.end(), all.begin(), all.end());
    return more;
  };
  return {
      {.name = "sight_one", .family = "qwen2_5_vl", .run = all},
      {.name = "sight_frozen_one", .family = "qwen3_vl"},
      {.name = "sight_tp2", .family = "qwen2_5_vl", .tp = 2, .run = all},
      {.name = "sight_tp2_cp2", .family = "qwen3_vl", .tp = 2, .cp = 2, .layout = kSequenceParallel, .run = all},
      {.name = "sight_cp2_recompute",
       .family = "qwen2_vl",
       .cp = 2,
       .layout = {"--recompute_granularity=full"},
       .run = all},
      {.name = "sight_pp2_dp2", .family = "qwen3_vl", .pp = 2, .dp = 2, .layout = kShards, .run = all},
      {.name = "sight_packed_cp2", .family = "qwen2_5_vl", .cp = 2, .run = with(kPacked)},
      {.name = "sight_lora_tp2", .family = "qwen2_5_vl", .tp = 2, .run = with(kLora)},
      {.name = "sight_delta_net_tp2", .family = "qwen3_5", .tp = 2, .layout = kSequenceParallel, .run = all},
  };
}

// Sounds as well, which are dealt likewise. Experts need sequence parallelism beside tp.
std::vector<DeviceCase> sound_cases() {
  const char* const family = "qwen3_omni_moe";
  const Words all{"--freeze_vision_tower=false", "--freeze_multi_modal_projector=false"};
  const auto with = [&all](Words more) {
    more.insert(more.end(), all.begin(), all.end());
    return more;
  };
  return {
      {.name = "sound_one", .family = family, .run = all},
      {.name = "sound_frozen_one", .family = family},
      {.name = "sound_tp2", .family = family, .tp = 2, .layout = kSequenceParallel, .run = all},
      {.name = "sound_tp2_cp2", .family = family, .tp = 2, .cp = 2, .layout = kSequenceParallel, .run = all},
      {.name = "sound_cp2_recompute",
       .family = family,
       .cp = 2,
       .layout = {"--recompute_granularity=full"},
       .run = all},
      {.name = "sound_pp2_dp2", .family = family, .pp = 2, .dp = 2, .layout = kShards, .run = all},
      {.name = "sound_dp2_ep2", .family = family, .dp = 2, .layout = {"--ep=2"}, .run = all},
      {.name = "sound_packed_cp2", .family = family, .cp = 2, .run = with(kPacked)},
      {.name = "sound_lora_tp2", .family = family, .tp = 2, .layout = kSequenceParallel, .run = with(kLora)},
  };
}

std::vector<DeviceCase> all_cases() {
  std::vector<DeviceCase> all = dense_cases();
  for (const auto& some : {expert_cases(), sight_cases(), sound_cases()})
    all.insert(all.end(), some.begin(), some.end());
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    DeviceCase half = all[i];
    half.name += "_bf16";
    half.bf16 = true;
    all.push_back(std::move(half));
  }
  return all;
}

void expect_parity(const DeviceCase& how, TestDevice device) {
  const DeviceModel model(how.family);
  expect_same_run(how, model.run(how, device), model.reference(how));
}

class Layouts : public ::testing::TestWithParam<DeviceCase> {};

TEST_P(Layouts, EqualOneRankOnTheCpu) {
  const auto device = test_device();
  if (!device) GTEST_SKIP() << "no GPU";
  if (const std::string obstacle = sight_obstacle(GetParam().family); !obstacle.empty()) GTEST_SKIP() << obstacle;
  expect_parity(GetParam(), *device);
}

INSTANTIATE_TEST_SUITE_P(OnCuda, Layouts, ::testing::ValuesIn(all_cases()),
                         [](const auto& each) { return each.param.name; });

// The parts of the tests above, on any machine.
TEST(LayoutsOnTheCpu, EqualOneRank) {
  expect_parity({.name = "tp2", .tp = 2}, TestDevice::kCpu);
  expect_parity({.name = "dp2_bf16", .dp = 2, .bf16 = true}, TestDevice::kCpu);
}

}  // namespace
}  // namespace megalith::testing
