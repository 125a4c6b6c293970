// Options of a model from scratch: each family's golden config.json said in options gives the same ModelConfig.
#include "megalith/run/resolve/model_from_options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "tests/model/model_support.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using Words = std::vector<std::string>;

config::TrainingArguments args_of(const Words& words) {
  return config::derive(config::parse_arguments(config::Dialect::kPretrain, words).args).args;
}

model::ModelConfig config_of(const Words& words, int64_t vocab = 256) {
  return run::model_from_options(args_of(words), {.size = vocab, .bos_id = 1, .eos_id = 2, .pad_id = {}});
}

std::string refusal_of(const Words& words) {
  try {
    config_of(words);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kSizes{"--num-layers=4",     "--hidden-size=64",      "--ffn-hidden-size=128",
                   "--hidden-dropout=0", "--attention-dropout=0", "--micro-batch-size=1"};
const Words kLlama = kSizes + Words{"--max-position-embeddings=512", "--normalization=RMSNorm", "--swiglu",
                                    "--disable-bias-linear", "--position-embedding-type=rope"};

// Every field but `source`, in one line.
std::string described(const model::ModelConfig& c) {
  std::string text = fmt::format(
      "{} h{} l{} n{} g{} d{} f{} v{} p{} norm{} eps{} qk{} bias{}{}{} scale{}{} act{} gated{} learned{} tied{} "
      "drop{},{},{} std{} dtype{}",
      c.family, c.hidden_size, c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, c.mlp_width, c.vocab_size,
      c.max_positions, static_cast<int>(c.norm), c.norm_epsilon, c.qk_norm, c.qkv_bias, c.out_bias, c.mlp_bias,
      c.attention_scale, c.scale_by_inverse_layer, static_cast<int>(c.activation), c.gated_mlp, c.learned_positions,
      c.tied_embeddings, c.embedding_dropout, c.hidden_dropout, c.attention_dropout, c.init_std,
      static_cast<int>(c.dtype));
  for (int64_t layer = 0; layer < c.num_layers; ++layer) text += fmt::format(" w{}", c.window(layer));
  if (c.rope)
    text += fmt::format(" rope r{} theta{} {} s{} f{} o{} low{} high{}", c.rope->rotary_dim, c.rope->theta,
                        c.rope->interleaved, static_cast<int>(c.rope->scaling), c.rope->factor,
                        c.rope->original_positions, c.rope->low_freq_factor, c.rope->high_freq_factor);
  return text;
}

TEST(FromArguments, Gpt2IsLikeItsGoldenConfig) {
  const auto config = config_of(kSizes + Words{"--num-attention-heads=4", "--max-position-embeddings=64"});
  EXPECT_EQ(described(config), described(model::read_model_config(golden_folder("gpt2"))));
}

TEST(FromArguments, LlamaIsLikeItsGoldenConfig) {
  // The reference's scaling has one length that it starts from, 8192.
  auto golden = golden_json("hf/llama/config.json");
  golden["rope_parameters"]["original_max_position_embeddings"] = 8192;
  const auto config =
      config_of(kLlama + Words{"--num-attention-heads=8", "--group-query-attention", "--num-query-groups=4",
                               "--untie-embeddings-and-output-weights", "--use-rope-scaling"},
                512);
  EXPECT_EQ(described(config), described(model::read_model_config(io::parse_json_file(golden.dump(), "config.json"))));
}

TEST(FromArguments, QwenModelsAreLikeTheirGoldenConfigs) {
  const Words qwen = kLlama + Words{"--num-attention-heads=4", "--group-query-attention", "--num-query-groups=2",
                                    "--layernorm-epsilon=1e-6"};
  EXPECT_EQ(described(config_of(qwen + Words{"--add-qkv-bias", "--rotary-base=1000000"})),
            described(model::read_model_config(golden_folder("qwen2"))));
  EXPECT_EQ(described(config_of(qwen + Words{"--qk-layernorm", "--rotary-base=1000000", "--kv-channels=24",
                                             "--untie-embeddings-and-output-weights"})),
            described(model::read_model_config(golden_folder("qwen3"))));
  // seed_oss with these switches is the model that qwen2's files hold, too.
  auto seed_oss = model::read_model_config(golden_folder("seed_oss"));
  seed_oss.family = "qwen2";
  EXPECT_EQ(described(config_of(
                qwen + Words{"--add-qkv-bias", "--rotary-base=10000000", "--untie-embeddings-and-output-weights"})),
            described(seed_oss));
  // A window of n tokens counts the query itself, which Megatron's does not.
  const auto mistral = model::read_model_config(golden_folder("mistral"));
  const auto window = fmt::format("--window-size={},0", mistral.window(0) - 1);
  EXPECT_EQ(
      described(config_of(qwen + Words{"--layernorm-epsilon=1e-5", "--untie-embeddings-and-output-weights", window})),
      described(mistral));
}

TEST(FromArguments, TheConfigurationIsWrittenAndReadBack) {
  for (const Words& words : {kSizes + Words{"--num-attention-heads=4", "--max-position-embeddings=64"},
                             kLlama + Words{"--num-attention-heads=4"},
                             kLlama + Words{"--num-attention-heads=4", "--position-embedding-type=yarn",
                                            "--rotary-scaling-factor=4", "--mscale=0.7"}}) {
    const auto config = config_of(words + Words{"--bf16"});
    const std::string written = model::config_json(config, at::kBFloat16);
    EXPECT_EQ(described(model::read_model_config(io::parse_json_file(written, "config.json"))), described(config));
    const auto parsed = nlohmann::json::parse(written);
    EXPECT_EQ(parsed["torch_dtype"], "bfloat16");
    EXPECT_EQ(parsed["eos_token_id"], 2);
    EXPECT_EQ(parsed["architectures"][0], model::family(config.family).architecture);
  }
}

TEST(FromArguments, LatentAttentionMakesADenseDeepSeek) {
  const Words words = kLlama + Words{"--num-attention-heads=4", "--multi-latent-attention", "--qk-layernorm",
                                     "--q-lora-rank=32",        "--kv-lora-rank=16",        "--qk-head-dim=16",
                                     "--qk-pos-emb-head-dim=8", "--v-head-dim=12",          "--mtp-num-layers=1"};
  const auto plain = config_of(words);
  EXPECT_EQ(plain.family, "deepseek_v3");
  ASSERT_TRUE(plain.latent && plain.rope);
  EXPECT_EQ(plain.latent->q_rank, 32);
  EXPECT_EQ(plain.latent->value_dim, 12);
  EXPECT_EQ(plain.head_dim, 24);
  EXPECT_EQ(plain.rope->rotary_dim, 8);
  EXPECT_TRUE(plain.rope->interleaved);
  EXPECT_EQ(plain.mtp_layers, 1);
  EXPECT_NEAR(plain.attention_scale, 1 / std::sqrt(24), 1e-12);
  const auto stretched =
      config_of(words + Words{"--rope-type=yarn", "--rotary-scaling-factor=40",
                              "--original-max-position-embeddings=4096", "--mscale=1.0", "--mscale-all-dim=1.0"});
  EXPECT_EQ(stretched.rope->scaling, ops::RopeScaling::kYarn);
  EXPECT_EQ(stretched.rope->factor, 40);
  const double magnitude = 0.1 * std::log(40) + 1;
  EXPECT_NEAR(stretched.attention_scale, magnitude * magnitude / std::sqrt(24), 1e-12);
  EXPECT_EQ(ops::rope_attention_factor(*stretched.rope), 1);
}

TEST(FromArguments, DefaultsAreMegatrons) {
  const Words small{"--num-layers=2", "--hidden-size=96", "--num-attention-heads=4", "--max-position-embeddings=32",
                    "--micro-batch-size=1"};
  const auto gpt = config_of(small);
  EXPECT_EQ(gpt.family, "gpt2");
  EXPECT_EQ(gpt.mlp_width, 4 * 96);
  EXPECT_EQ(gpt.activation, ops::Activation::kGeluTanh);
  EXPECT_EQ(gpt.hidden_dropout, 0.1);
  EXPECT_EQ(gpt.embedding_dropout, 0.1);
  EXPECT_TRUE(gpt.tied_embeddings);
  EXPECT_EQ(config_of(small + Words{"--no-bias-gelu-fusion"}).activation, ops::Activation::kGelu);
  EXPECT_EQ(config_of(small + Words{"--squared-relu"}).activation, ops::Activation::kSquaredRelu);
  const auto llama = config_of(small + Words{"--normalization=RMSNorm", "--swiglu", "--position-embedding-type=rope"});
  EXPECT_EQ(llama.mlp_width, 4 * 96 * 2 / 3 / 64 * 64);
  EXPECT_TRUE(llama.qkv_bias && llama.out_bias && llama.mlp_bias);
  EXPECT_EQ(config_of(small + Words{"--padded-vocab-size=512"}).vocab_size, 512);
}

TEST(FromArguments, WhatDoesNotGoTogetherIsNamed) {
  const Words gpt2 = kSizes + Words{"--num-attention-heads=4", "--max-position-embeddings=64"};
  const Words llama = kLlama + Words{"--num-attention-heads=4"};
  const Words latent = llama + Words{"--multi-latent-attention", "--qk-layernorm"};
  const std::vector<std::pair<Words, std::vector<const char*>>> cases{
      {llama + Words{"--squared-relu"}, {"swiglu", "squared_relu", "exclude"}},
      {llama + Words{"--use-rope-scaling", "--position-embedding-type=yarn"}, {"use_rope_scaling", "yarn"}},
      {llama + Words{"--rotary-percent=0.01"}, {"rotary_percent 0.01 of the 16 channels", "at least 2"}},
      {gpt2 + Words{"--rotary-percent=0.5"}, {"rotary_percent", "position_embedding_type rope"}},
      {llama + Words{"--window-size=128"}, {"window_size is \"128\"", "128,0"}},
      {llama + Words{"--window-size=128,1"}, {"window_size is \"128,1\""}},
      {llama + Words{"--window-attn-skip-freq=2"}, {"window_attn_skip_freq 2 needs window_size"}},
      {llama + Words{"--window-size=8,0", "--window-attn-skip-freq=[1,0]"}, {"window_attn_skip_freq", "2 layers"}},
      {gpt2 + Words{"--num-experts=4"}, {"num_experts 4", "disable_bias_linear"}},
      {llama + Words{"--num-experts=4", "--moe-layer-freq=([1]*2"}, {"moe_layer_freq", "([1]*3+[0]*2)"}},
      {llama + Words{"--num-experts=4", "--moe-layer-freq=[1]*3"}, {"moe_layer_freq", "3 layers"}},
      {llama + Words{"--num-experts=4", "--moe-layer-freq=[0]*4"}, {"moe_layer_freq leaves no layer"}},
      {llama + Words{"--num-experts=4", "--moe-shared-expert-gate"}, {"moe_shared_expert_intermediate_size"}},
      {llama + Words{"--multi-latent-attention", "--position-embedding-type=learned_absolute"},
       {"multi_latent_attention has rotary positions", "position_embedding_type rope", "set qk_layernorm"}},
      {latent + Words{"--window-size=8,0"}, {"multi_latent_attention has neither windows", "window_size"}},
      {latent + Words{"--rotary-interleaved"}, {"multi_latent_attention", "rotary_interleaved"}},
      {{"--num-layers=2", "--micro-batch-size=1"}, {"hidden_size", "num_attention_heads", "max_position_embeddings"}}};
  for (const auto& [words, names] : cases) {
    const std::string message = refusal_of(words);
    for (const char* name : names) expect_contains(message, name);
  }
}

// Models that no Hugging Face family holds: one line per combination, with what the nearest family lacks.
TEST(FromArguments, OtherCombinationsAreMegatronGpt) {
  const Words gpt2 = kSizes + Words{"--num-attention-heads=4", "--max-position-embeddings=64"};
  const Words llama = kLlama + Words{"--num-attention-heads=4"};
  const Words experts = llama + Words{"--num-experts=4", "--moe-ffn-hidden-size=32"};
  const std::vector<std::pair<Words, const char*>> cases{
      {gpt2 + Words{"--position-embedding-type=rope"}, "llama has other norms and MLP"},
      {gpt2 + Words{"--swiglu"}, "gpt2 has other MLP"},
      {gpt2 + Words{"--disable-bias-linear"}, "biases of attention"},
      {gpt2 + Words{"--qk-layernorm"}, "norms on queries and keys"},
      {gpt2 + Words{"--group-query-attention", "--num-query-groups=2"}, "heads"},
      {gpt2 + Words{"--kv-channels=8"}, "heads"},
      {gpt2 + Words{"--normalization=RMSNorm"}, "norms"},
      {gpt2 + Words{"--position-embedding-type=none"}, "positions"},
      {llama + Words{"--rotary-percent=0.5"}, "positions"},
      {llama + Words{"--rotary-interleaved"}, "positions"},
      {llama + Words{"--attention-output-gate"}, "gate on the output of attention"},
      {llama + Words{"--mtp-num-layers=1"}, "multi-token-prediction layers"},
      {llama + Words{"--qk-layernorm", "--add-qkv-bias"}, "biases of attention"},
      {llama + Words{"--window-size=(8,0)", "--window-attn-skip-freq=2"}, "attention windows"},
      {experts + Words{"--moe-layer-freq=2"}, "experts and their router"},
      {experts + Words{"--moe-router-pre-softmax"}, "experts and their router"},
      {experts + Words{"--moe-shared-expert-intermediate-size=32"}, "experts and their router"},
      {experts + Words{"--mtp-num-layers=1"}, "multi-token-prediction layers"},
      {experts + Words{"--multi-latent-attention", "--qk-layernorm"}, "deepseek_v3 has other experts"}};
  for (const auto& [words, lacking] : cases) {
    SCOPED_TRACE(words.back());
    const config::TrainingArguments args = args_of(words);
    const auto made = config_of(words);
    EXPECT_EQ(made.family, "megatron_gpt");
    expect_contains(run::export_note(args, made), lacking);
    const std::string written = model::config_json(made, at::kFloat);
    const auto again = model::read_model_config(io::parse_json_file(written, "config.json"));
    EXPECT_EQ(model::differences(made, again), std::vector<std::string>{});
    EXPECT_EQ(described(again), described(made));
  }
  EXPECT_EQ(run::export_note(args_of(llama), config_of(llama)), "");
}

TEST(FromArguments, WindowsAreMegatrons) {
  const Words llama = kLlama + Words{"--num-attention-heads=4"};
  // A query sees the tokens of the window and itself.
  const auto mistral = config_of(llama + Words{"--window-size=8,0"});
  EXPECT_EQ(mistral.family, "mistral");
  EXPECT_EQ(mistral.windows, std::vector<int64_t>(4, 9));
  EXPECT_EQ(config_of(llama + Words{"--window-size=(-1,-1)"}).family, "llama");
  const auto qwen = config_of(llama + Words{"--add-qkv-bias", "--window-size=8,0", "--window-attn-skip-freq=2"});
  EXPECT_EQ(qwen.family, "qwen2");
  EXPECT_EQ(qwen.windows, (std::vector<int64_t>{9, 0, 9, 0}));
  EXPECT_EQ(config_of(llama + Words{"--window-size=8,0", "--window-attn-skip-freq=[0]*3+[1]"}).windows,
            (std::vector<int64_t>{0, 0, 0, 9}));
}

// DeepSeek-V3 by Megatron's options, small.
TEST(FromArguments, LatentAttentionWithExpertsMakesADeepSeek) {
  const Words words = kLlama + Words{"--num-attention-heads=4",
                                     "--multi-latent-attention",
                                     "--qk-layernorm",
                                     "--num-experts=16",
                                     "--moe-layer-freq=[0]*1+[1]*3",
                                     "--moe-ffn-hidden-size=32",
                                     "--moe-shared-expert-intermediate-size=64",
                                     "--moe-router-score-function=sigmoid",
                                     "--moe-router-enable-expert-bias",
                                     "--moe-router-topk=4",
                                     "--moe-router-num-groups=4",
                                     "--moe-router-group-topk=2",
                                     "--moe-router-pre-softmax",
                                     "--moe-router-topk-scaling-factor=2.5",
                                     "--mtp-num-layers=1",
                                     "--rotary-scaling-factor=40",
                                     "--mscale=1.0",
                                     "--mscale-all-dim=1.0"};
  const auto made = config_of(words);
  EXPECT_EQ(made.family, "deepseek_v3");
  ASSERT_TRUE(made.moe && made.latent);
  EXPECT_EQ(made.moe_layers, (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(made.moe->shared_width, 64);
  EXPECT_TRUE(made.moe->router.normalize);  // sigmoid scores always, whatever moe_router_pre_softmax
  EXPECT_EQ(made.moe->router.scaling, 2.5);
  EXPECT_EQ(made.moe->router.group_best, 2);
  EXPECT_EQ(made.moe->router.bias_update_rate, 1e-3);
  EXPECT_EQ(made.mtp_layers, 1);
  // Without rope_type latent attention takes yarn.
  EXPECT_EQ(made.rope->scaling, ops::RopeScaling::kYarn);
  EXPECT_EQ(config_of(words + Words{"--rope-type=rope"}).rope->scaling, ops::RopeScaling::kNone);
  // transformers sums the two best experts of a group; Megatron as many as a token takes from it.
  const auto wider = config_of(words + Words{"--moe-router-topk=6"});
  EXPECT_EQ(wider.family, "megatron_gpt");
  EXPECT_EQ(wider.moe->router.group_best, 3);
}

TEST(FromArguments, ExpertsMakeTheFamilyThatHoldsThem) {
  const Words experts = kLlama + Words{"--num-attention-heads=4", "--num-experts=8", "--moe-ffn-hidden-size=32"};
  const auto mixtral = config_of(experts);
  EXPECT_EQ(mixtral.family, "mixtral");
  EXPECT_EQ(mixtral.moe->width, 32);
  EXPECT_EQ(mixtral.moe->router.experts, 8);
  EXPECT_EQ(mixtral.moe->router.topk, 2);
  const auto qwen3 = config_of(experts + Words{"--qk-layernorm", "--moe-layer-freq=([0]*1+[1]*3)"});
  EXPECT_EQ(qwen3.family, "qwen3_moe");
  EXPECT_EQ(qwen3.moe_layers, (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(qwen3.mlp_width, 128);
  const Words shared{"--moe-shared-expert-intermediate-size=64"};
  const auto qwen2 = config_of(experts + shared + Words{"--add-qkv-bias", "--moe-shared-expert-gate"});
  EXPECT_EQ(qwen2.family, "qwen2_moe");
  EXPECT_EQ(qwen2.moe->shared_width, 64);
  const auto glm = config_of(experts + shared +
                             Words{"--moe-router-score-function=sigmoid", "--moe-router-enable-expert-bias",
                                   "--moe-router-num-groups=4", "--moe-router-group-topk=2", "--moe-router-topk=4"});
  EXPECT_EQ(glm.family, "glm4_moe");
  EXPECT_EQ(glm.moe->router.groups, 4);
  EXPECT_EQ(glm.moe->router.group_topk, 2);
  EXPECT_EQ(glm.moe->router.bias_update_rate, 1e-3);
  EXPECT_EQ(glm.rope->rotary_dim, glm.head_dim);
}

}  // namespace
}  // namespace megalith::testing
