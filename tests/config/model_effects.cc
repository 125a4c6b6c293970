#include "megalith/config/derive.h"
#include "megalith/model/from_arguments.h"
#include "megalith/model/pretrained.h"
#include "megalith/model/virtual_models.h"
#include "tests/config/effects.h"

namespace megalith::config {
namespace {

std::string model_of(const TrainingArguments& args) {
  const TrainingArguments effective = derive(args).args;
  const model::ModelConfig config =
      model::config_from_arguments(effective, {.size = 100, .bos_id = {}, .eos_id = {}, .pad_id = {}});
  return model::config_json(config, at::kFloat) + fmt::format("{} {}", config.hidden_dropout, config.init_std);
}

std::string vocabulary_of(const TrainingArguments& args) {
  return fmt::format("{}", model::ModelOptions::from(derive(args).args, at::kCPU).vocab_multiple);
}

const Words kGpt2{"--num_layers=2", "--hidden_size=32", "--num_attention_heads=4", "--max_position_embeddings=64",
                  "--micro_batch_size=1"};
const Words kLlama{"--num_layers=2",
                   "--hidden_size=32",
                   "--num_attention_heads=4",
                   "--max_position_embeddings=64",
                   "--micro_batch_size=1",
                   "--normalization=RMSNorm",
                   "--swiglu",
                   "--position_embedding_type=rope",
                   "--disable_bias_linear"};

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kYarn = kLlama + Words{"--position_embedding_type=yarn", "--rotary_scaling_factor=4"};

Effect row(const char* option, const Words& base, const Words& without, const Words& with) {
  return {option, base, without, with, model_of, Dialect::kPretrain};
}

}  // namespace

std::vector<Effect> model_effects() {
  const Words biased{"--num_layers=2",
                     "--hidden_size=32",
                     "--num_attention_heads=4",
                     "--max_position_embeddings=64",
                     "--micro_batch_size=1",
                     "--normalization=RMSNorm",
                     "--position_embedding_type=rope"};
  return {
      row("hidden_size", kGpt2, {}, {"--hidden_size=64"}),
      row("ffn_hidden_size", kGpt2, {}, {"--ffn_hidden_size=48"}),
      row("num_attention_heads", kGpt2, {}, {"--num_attention_heads=2"}),
      row("group_query_attention", kLlama + Words{"--num_query_groups=2"}, {}, {"--group_query_attention"}),
      row("num_query_groups", kLlama + Words{"--group_query_attention"}, {}, {"--num_query_groups=2"}),
      row("kv_channels", kLlama, {}, {"--kv_channels=16"}),
      row("max_position_embeddings", kGpt2, {}, {"--max_position_embeddings=128"}),
      row("padded_vocab_size", kGpt2, {}, {"--padded_vocab_size=128"}),
      {"make_vocab_size_divisible_by",
       kGpt2,
       {},
       {"--make_vocab_size_divisible_by=64"},
       vocabulary_of,
       Dialect::kPretrain},
      row("untie_embeddings_and_output_weights", kGpt2, {}, {"--untie_embeddings_and_output_weights"}),
      row("normalization", {}, kGpt2, kLlama),
      row("layernorm_epsilon", kGpt2, {}, {"--layernorm_epsilon=1e-6"}),
      row("swiglu", biased, {"--quick_geglu"}, {"--swiglu"}),
      row("quick_geglu", biased, {"--swiglu"}, {"--quick_geglu"}),
      row("squared_relu", kGpt2, {}, {"--squared_relu"}),
      row("add_bias_linear", biased + Words{"--swiglu"}, {}, {"--disable_bias_linear"}),
      row("add_qkv_bias", kLlama, {}, {"--add_qkv_bias"}),
      row("qk_layernorm", kLlama, {}, {"--qk_layernorm"}),
      row("hidden_dropout", kGpt2, {}, {"--hidden_dropout=0.2"}),
      row("attention_dropout", kGpt2, {}, {"--attention_dropout=0.2"}),
      row("init_method_std", kGpt2, {}, {"--init_method_std=0.01"}),
      row("bias_activation_fusion", kGpt2, {}, {"--no_bias_gelu_fusion"}),
      row("position_embedding_type", kLlama, {}, {"--position_embedding_type=yarn"}),
      row("rotary_base", kLlama, {}, {"--rotary_base=500000"}),
      row("rotary_seq_len_interpolation_factor", kLlama, {}, {"--rotary_seq_len_interpolation_factor=2"}),
      row("use_rope_scaling", kLlama, {}, {"--use_rope_scaling"}),
      row("rope_scaling_factor", kLlama + Words{"--use_rope_scaling"}, {}, {"--rope_scaling_factor=4"}),
      row("rotary_scaling_factor", kYarn, {}, {"--rotary_scaling_factor=2"}),
      row("original_max_position_embeddings", kYarn, {}, {"--original_max_position_embeddings=32"}),
      row("beta_fast", kYarn, {}, {"--beta_fast=16"}),
      row("beta_slow", kYarn, {}, {"--beta_slow=2"}),
      row("mscale", kYarn, {}, {"--mscale=0.5"}),
      row("mscale_all_dim", kYarn, {}, {"--mscale_all_dim=0.5"}),
  };
}

}  // namespace megalith::config
