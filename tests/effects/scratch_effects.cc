// Models and tokenizers that options describe: models by tiny runs, tokenizers by what they are.
#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/pretrain.h"
#include "megalith/run/resolve/model_from_options.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/run_tokenizer.h"
#include "tests/effects/effect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/tokenizers.h"

namespace megalith::testing {
namespace {

using config::Dialect;
using config::TrainingArguments;

// The numbers of a run on made-up data that begins with the weights of its seed: parameters, losses, gradient norms.
std::string trained(const TrainingArguments& args) {
  std::string text;
  run_ranks(1, [&](const Rank& rank) {
    const auto context = run::initialize_megatron(args, {.allow_no_cuda = true, .world = &rank.world});
    const auto count = [&](run::RunContext&, model::VirtualModels& models) {
      int64_t elements = 0;
      for (const nn::Parameter* parameter : models.parameters()) elements += parameter->value.numel();
      text = fmt::format("{} parameters", elements);
      return std::vector<std::unique_ptr<train::TrainerCallback>>();
    };
    for (const train::MetricList& line : run::pretrain(*context, {.callbacks = count}).state.log_history)
      for (const auto& [name, value] : line)
        if (name.ends_with("loss") || name == "grad_norm") text += fmt::format(" {} {:.9g}", name, value);
  });
  return text;
}

std::string tokenizer(const TrainingArguments& args) {
  try {
    const auto made = run::make_run_tokenizer(args);
    return made ? fmt::format("{} ids of {}", made->tokens.vocab_size, made->tokens.identity) : "none";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

const TemporaryFolder& gpt2_files() {
  static const TemporaryFolder folder(
      {{"vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})"}, {"merges.txt", "#version: 0.2\na b\n"}});
  return folder;
}

// A vocabulary of the bytes and two longer tokens.
const TemporaryFolder& tiktoken_file() {
  static const TemporaryFolder folder({{"ranks.json", tiktoken_vocabulary({"\n\n", "aB"})}});
  return folder;
}

// The ids of a text that the patterns of TikTokenizer cut in different places.
std::string encoded(const TrainingArguments& args) {
  const auto made = run::make_run_tokenizer(args);
  return fmt::format("{} ids: {}", made->tokens.vocab_size, fmt::join(made->tokenizer->encode("aB\n\n<x>"), " "));
}

// The logits of the model, with the weights that its seed draws.
std::string computed(const TrainingArguments& args) {
  const TrainingArguments effective = config::derive(args).args;
  const model::ModelConfig made = run::model_from_options(effective, {.size = 100});
  std::string text;
  run_ranks(1, [&](const Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    const auto models = model::AutoModel::from_config(made, run::model_settings(effective, at::kCPU), context);
    const at::NoGradGuard no_grad;
    const model::ModelInput input{
        .layout = ops::SequenceLayout::dense(1, 8), .ids = at::arange(8, at::kLong), .training = false};
    text = fmt::format("{:.6f}", models[0].forward(input).abs().sum().item<double>());
  });
  return text;
}

// Two steps of a small model; `num_attention_heads` is left to the rows.
const Words kRun{"--num_layers=2",
                 "--hidden_size=64",
                 "--seq_length=256",  // the index of made-up data has an entry per sample
                 "--max_position_embeddings=256",
                 "--mock_data",
                 "--tokenizer_type=NullTokenizer",
                 "--vocab_size=100",
                 "--train_iters=2",
                 "--lr=1e-2",
                 "--lr_decay_style=constant",
                 "--micro_batch_size=2",
                 "--eval_iters=0",
                 "--log_interval=1",
                 "--use_cpu"};

Words with_heads(Words words) {
  words.emplace_back("--num_attention_heads=4");
  return words;
}
const Words kGpt = with_heads(kRun);

Words llama(const Words& more = {}) {
  Words words = kGpt;
  const Words rest{"--normalization=RMSNorm", "--position_embedding_type=rope", "--swiglu", "--disable_bias_linear"};
  words.insert(words.end(), rest.begin(), rest.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words gpt(const Words& more) {
  Words words = kGpt;
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Effects of_shape(const Observe& seen) {
  return {
      {"hidden_size", kGpt, {}, {"--hidden_size=128"}, seen},
      {"ffn_hidden_size", kGpt, {}, {"--ffn_hidden_size=96"}, seen},
      {"num_attention_heads", kRun, {"--num_attention_heads=4"}, {"--num_attention_heads=8"}, seen},
      {"group_query_attention", llama({"--num_query_groups=2"}), {}, {"--group_query_attention"}, seen},
      {"num_query_groups", llama({"--group_query_attention"}), {}, {"--num_query_groups=2"}, seen},
      {"kv_channels", llama(), {}, {"--kv_channels=32"}, seen},
      {"max_position_embeddings", kGpt, {}, {"--max_position_embeddings=512"}, seen},
      {"padded_vocab_size", kGpt, {}, {"--padded_vocab_size=128"}, seen},
      {"make_vocab_size_divisible_by", kGpt, {}, {"--make_vocab_size_divisible_by=256"}, seen},
      {"untie_embeddings_and_output_weights", llama(), {}, {"--untie_embeddings_and_output_weights"}, seen},
      {"normalization",
       gpt({"--position_embedding_type=rope", "--swiglu", "--disable_bias_linear"}),
       {"--normalization=RMSNorm"},
       {"--normalization=LayerNorm", "--position_embedding_type=learned_absolute", "--swiglu=false",
        "--add_bias_linear=true"},
       seen},
      {"layernorm_epsilon", kGpt, {}, {"--layernorm_epsilon=1e-6"}, seen},
      {"swiglu", llama({"--swiglu=false"}), {"--quick_geglu"}, {"--swiglu"}, seen},
      {"quick_geglu", llama({"--swiglu=false"}), {"--swiglu"}, {"--quick_geglu"}, seen},
      {"squared_relu", kGpt, {}, {"--squared_relu"}, seen},
      {"bias_activation_fusion", kGpt, {}, {"--no_bias_gelu_fusion"}, seen},
      {"add_bias_linear", llama(), {}, {"--add_bias_linear=true"}, seen},
      {"add_qkv_bias", llama(), {}, {"--add_qkv_bias"}, seen},
      {"qk_layernorm", llama(), {}, {"--qk_layernorm"}, seen},
      {"attention_output_gate", llama(), {}, {"--attention_output_gate"}, computed},
      {"window_size", llama(), {}, {"--window_size=2,0"}, computed},
      {"window_attn_skip_freq", llama({"--window_size=2,0"}), {}, {"--window_attn_skip_freq=2"}, computed},
      {"hidden_dropout", kGpt, {}, {"--hidden_dropout=0"}, seen},
      {"attention_dropout", kGpt, {}, {"--attention_dropout=0"}, seen},
      {"init_method_std", kGpt, {}, {"--init_method_std=0.01"}, seen},
  };
}

Effects of_experts(const Observe& seen) {
  const auto mixtral = [](const Words& more = {}) {
    Words words = llama({"--num_experts=4"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Words shared{"--moe_ffn_hidden_size=32", "--moe_shared_expert_intermediate_size=32"};
  Words glm = mixtral(shared), qwen2 = mixtral({"--moe_ffn_hidden_size=32", "--add_qkv_bias"});
  glm.emplace_back("--moe_router_score_function=sigmoid");
  const Words qwen3 = mixtral({"--qk_layernorm"});
  Words gated = qwen2, grouped = glm, limited = glm;
  limited.insert(limited.end(), {"--num_experts=8", "--moe_router_group_topk=1"});
  gated.emplace_back("--moe_shared_expert_gate");
  grouped.emplace_back("--moe_router_num_groups=2");
  return {
      {"num_experts", llama(), {}, {"--num_experts=4"}, seen},
      {"moe_layer_freq", qwen3, {}, {"--moe_layer_freq=2"}, seen},
      {"moe_ffn_hidden_size", mixtral(), {}, {"--moe_ffn_hidden_size=32"}, seen},
      {"moe_shared_expert_intermediate_size",
       gated,
       {"--moe_shared_expert_intermediate_size=32"},
       {"--moe_shared_expert_intermediate_size=64"},
       seen},
      {"moe_shared_expert_gate",
       qwen2,
       {},
       {"--moe_shared_expert_intermediate_size=32", "--moe_shared_expert_gate"},
       [seen](const TrainingArguments& args) {
         try {
           return seen(args);
         } catch (const ConfigError& error) {  // qwen2_moe's shared expert has the gate
           return std::string(error.what());
         }
       }},
      {"moe_router_topk", mixtral(), {}, {"--moe_router_topk=3"}, seen},
      {"moe_router_score_function",
       mixtral(shared),
       {"--add_qkv_bias", "--moe_shared_expert_gate"},
       {"--moe_router_score_function=sigmoid"},
       seen},
      {"moe_router_pre_softmax", qwen3, {}, {"--moe_router_pre_softmax"}, seen},
      {"moe_router_num_groups", limited, {"--moe_router_num_groups=2"}, {"--moe_router_num_groups=4"}, seen},
      {"moe_router_group_topk", grouped, {}, {"--moe_router_group_topk=1"}, seen},
      {"moe_router_topk_scaling_factor", glm, {}, {"--moe_router_topk_scaling_factor=2.5"}, seen},
      {"moe_router_enable_expert_bias", glm, {}, {"--moe_router_enable_expert_bias"}, seen},
  };
}

Effects of_positions(const Observe& seen) {
  const Words yarn = llama({"--position_embedding_type=yarn", "--rotary_scaling_factor=4"});
  return {
      {"position_embedding_type", llama(), {}, {"--position_embedding_type=none"}, seen},
      {"rotary_base", llama(), {}, {"--rotary_base=500000"}, seen},
      {"rotary_percent", llama(), {}, {"--rotary_percent=0.5"}, computed},
      {"rotary_interleaved", llama(), {}, {"--rotary_interleaved"}, computed},
      {"rotary_seq_len_interpolation_factor", llama(), {}, {"--rotary_seq_len_interpolation_factor=2"}, seen},
      {"use_rope_scaling", llama(), {}, {"--use_rope_scaling"}, seen},
      {"rope_scaling_factor", llama({"--use_rope_scaling"}), {}, {"--rope_scaling_factor=4"}, seen},
      {"rotary_scaling_factor", yarn, {}, {"--rotary_scaling_factor=8"}, seen},
      {"original_max_position_embeddings", yarn, {}, {"--original_max_position_embeddings=16"}, seen},
      {"beta_fast", yarn, {}, {"--beta_fast=16"}, seen},
      {"beta_slow", yarn, {}, {"--beta_slow=4"}, seen},
      {"mscale", yarn, {}, {"--mscale=0.5"}, seen},
      {"mscale_all_dim", yarn, {}, {"--mscale_all_dim=0.5"}, seen},
  };
}

Effects of_latent_attention(const Observe& seen) {
  const Words plain = llama({"--qk_layernorm"});
  const Words latent = llama({"--qk_layernorm", "--multi_latent_attention"});
  const Words deeper = llama({"--qk_layernorm", "--multi_latent_attention", "--mtp_num_layers=1"});
  const Words stretched = llama({"--qk_layernorm", "--multi_latent_attention", "--rotary_scaling_factor=4"});
  return {
      {"multi_latent_attention", plain, {}, {"--multi_latent_attention"}, seen},
      {"q_lora_rank", latent, {}, {"--q_lora_rank=24"}, seen},
      {"kv_lora_rank", latent, {}, {"--kv_lora_rank=16"}, seen},
      {"qk_head_dim", latent, {}, {"--qk_head_dim=24"}, seen},
      {"qk_pos_emb_head_dim", latent, {}, {"--qk_pos_emb_head_dim=16"}, seen},
      {"v_head_dim", latent, {}, {"--v_head_dim=24"}, seen},
      {"rope_type", stretched, {}, {"--rope_type=rope"}, seen},
      {"mtp_num_layers", latent, {}, {"--mtp_num_layers=1"}, seen},
      {"mtp_loss_scaling_factor", deeper, {}, {"--mtp_loss_scaling_factor=0.3"}, seen},
  };
}

Effects of_tokenizer() {
  const std::string qwen = tokenizer_folder("qwen3").string(), own = gpt2_files().path().string();
  const Words ranks{"--tokenizer_type=TikTokenizer",
                    "--tokenizer_model=" + tiktoken_file().path().string() + "/ranks.json"};
  const std::string vocab = "--vocab_file=" + own + "/vocab.json", merges = "--merge_file=" + own + "/merges.txt";
  return {
      {"vocab_size", {}, {"--vocab_size=100"}, {"--vocab_size=200"}, tokenizer},
      {"tokenizer_type",
       {"--vocab_size=100", "--tokenizer_model=" + qwen},
       {"--tokenizer_type=NullTokenizer"},
       {"--tokenizer_type=HuggingFaceTokenizer"},
       tokenizer},
      {"tokenizer_model", {}, {}, {"--tokenizer_model=" + qwen}, tokenizer},
      {"vocab_file", {merges}, {}, {vocab}, tokenizer},
      {"merge_file", {vocab}, {}, {merges}, tokenizer},
      {"vocab_extra_ids", {"--vocab_size=100"}, {}, {"--vocab_extra_ids=10"}, tokenizer},
      {"tiktoken_pattern", ranks, {}, {"--tiktoken_pattern=v1"}, encoded},
      {"tiktoken_num_special_tokens", ranks, {}, {"--tiktoken_num_special_tokens=10"}, encoded},
      {"tiktoken_special_tokens",
       ranks,
       {},
       {"--tiktoken_special_tokens", "<x>", "<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"},
       encoded},
  };
}

}  // namespace

Effects scratch_effects() {
  Effects effects;
  for (const Effects& part :
       {of_shape(trained), of_experts(trained), of_positions(trained), of_latent_attention(trained), of_tokenizer()})
    for (const Effect& effect : part) {
      effects.push_back(effect);
      effects.back().dialect = Dialect::kPretrain;
    }
  return effects;
}

}  // namespace megalith::testing
