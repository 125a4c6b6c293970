// Plans against what was measured on one H200 (docs/gpu.md): the cases of gpu_bench, and the machine's own speeds.
#include <gtest/gtest.h>

#include "megalith/plan/search.h"
#include "megalith/run/resolve/run_shape.h"
#include "tests/plan/memory_case.h"

namespace megalith::plan {
namespace {

using nlohmann::json;

struct MeasuredRun {
  std::string name, family;
  json config;
  int batch;
  int64_t length;
  std::vector<std::string> options;
  double gib, tokens_per_second;
};

json sizes(int vocab, int hidden, int layers, int heads, int kv_heads, int head_dim, int width, bool tied) {
  return {{"vocab_size", vocab},         {"hidden_size", hidden},
          {"num_hidden_layers", layers}, {"num_attention_heads", heads},
          {"head_dim", head_dim},        {"num_key_value_heads", kv_heads},
          {"intermediate_size", width},  {"max_position_embeddings", 32768},
          {"tie_word_embeddings", tied}};
}

std::vector<MeasuredRun> measured_runs() {
  const json gpt2{{"vocab_size", 50304}, {"n_embd", 768}, {"n_layer", 12}, {"n_head", 12}, {"n_positions", 1024}};
  json experts = sizes(151936, 2048, 8, 32, 4, 128, 768, false);
  experts.update({{"num_experts", 64},
                  {"num_experts_per_tok", 8},
                  {"moe_intermediate_size", 768},
                  {"norm_topk_prob", true},
                  {"router_aux_loss_coef", 0.0}});
  return {
      {"gpt2_124m", "gpt2", gpt2, 64, 1024, {}, 20.867, 563510},
      {"llama_1b", "llama", sizes(128256, 2048, 16, 32, 8, 64, 8192, true), 4, 4096, {}, 40.484, 66203},
      {"qwen2_0_5b", "qwen2", sizes(151936, 896, 24, 14, 2, 64, 4864, true), 8, 4096, {}, 39.4, 132600},
      {"llama_8b_4layer",
       "llama",
       sizes(128256, 4096, 4, 32, 8, 128, 14336, false),
       4,
       4096,
       {"--recompute_granularity=selective", "--recompute_modules=mlp_act"},
       40.505,
       66730},
      {"moe_small", "qwen3_moe", experts, 4, 4096, {}, 64.961, 82773},
  };
}

class OnH200 : public ::testing::TestWithParam<MeasuredRun> {};

TEST_P(OnH200, PlannedIsNearMeasured) {
  const MeasuredRun& run = GetParam();
  std::vector<std::string> words{"--bf16=true", "--finetuning_type=full", "--cross_entropy_loss_fusion"};
  words.insert(words.end(), run.options.begin(), run.options.end());
  const testing::MemoryCase planned =
      testing::memory_case(run.name, testing::plan_model(run.family, run.config), words, 1, run.length);
  SearchRequest request = run::search_request(planned.model, planned.args);
  request.given.micro_batch = run.batch;
  request.global_batch = run.batch;
  request.sequence_length = run.length;
  request.cluster = find_cluster("tests/data/plan/h200_measured.yaml");
  const SearchResult result = search_layouts(request);
  ASSERT_FALSE(result.best.empty()) << result.why_not;
  const Candidate& best = result.best.front();
  EXPECT_NEAR(best.memory.peak() / (1 << 30), run.gib, 0.05 * run.gib);
  EXPECT_NEAR(best.time.tokens_per_second(), run.tokens_per_second, 0.15 * run.tokens_per_second);
}

INSTANTIATE_TEST_SUITE_P(Runs, OnH200, ::testing::ValuesIn(measured_runs()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace megalith::plan
