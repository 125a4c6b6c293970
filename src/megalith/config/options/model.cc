// Options of the model: its source, and the shape of one that is trained from scratch. describes_new_model() marks
// what config.json decides when there is a model folder.
//
// Most members are optional: without a value the model folder decides. pretrain_default() then supplies Megatron's
// default for a model without a folder, and `train` has none.
#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

// The folder that a model is read from, and options that change how it is read.
void add_source(OptionList& list) {
  list.topic("Model");
  auto source = list.part(&TrainingArguments::source);
  source
      .add("model_name_or_path", &ModelSourceConfig::model_name_or_path,
           "folder with config.json and safetensors (required by train)")
      .train_only();
  source.add("train_from_scratch", &ModelSourceConfig::train_from_scratch, "take the model's shape, draw its weights")
      .train_only();
  source
      .add("additional_configs", &ModelSourceConfig::additional_configs,
           "further options as JSON or a JSON file; those that are given by themselves win, unknown ones are ignored")
      .train_only();
  source
      .add("split_special_tokens", &ModelSourceConfig::split_special_tokens,
           "special tokens in texts of the data are tokenized as text; those of the template remain tokens")
      .train_only();
  source
      .add("resize_vocab", &ModelSourceConfig::resize_vocab,
           "grow embedding and head to the tokenizer, if it has more tokens than they have rows")
      .train_only();
  source.add("add_tokens", &ModelSourceConfig::add_tokens, "tokens to add to the tokenizer; implies resize_vocab")
      .commas()
      .train_only();
  source
      .add("add_special_tokens", &ModelSourceConfig::add_special_tokens,
           "special tokens to add to the tokenizer, after add_tokens; implies resize_vocab")
      .commas()
      .train_only();
  source.add("transformer_impl", &ModelSourceConfig::transformer_impl, "layer library of the reference")
      .no_effect("Megalith has one implementation of its layers");
}

// Sizes of the residual stream, heads and vocabulary. num_layers, seq_length and vocab_size are not marked with
// describes_new_model(): they also matter beside a folder (pipeline splits, data, padding).
void add_shape(OptionList& list) {
  list.topic("Model shape");
  auto shape = list.part(&TrainingArguments::shape);
  shape.add("num_layers", &ModelShapeConfig::num_layers, "decoder layers").at_least(1);
  shape.add("hidden_size", &ModelShapeConfig::hidden_size, "width of the residual stream")
      .at_least(1)
      .describes_new_model();
  // 4h is the usual width with two matrices. A gated MLP has three, so 2/3 of that keeps the number of parameters.
  shape
      .add("ffn_hidden_size", &ModelShapeConfig::ffn_hidden_size,
           "MLP width (none: 4h; with swiglu 4h*2/3 rounded down to a multiple of 64)")
      .at_least(1)
      .describes_new_model();
  shape.add("num_attention_heads", &ModelShapeConfig::num_attention_heads, "query heads")
      .at_least(1)
      .describes_new_model();
  shape.add("group_query_attention", &ModelShapeConfig::group_query_attention, "fewer key/value heads than query heads")
      .describes_new_model();
  shape.add("num_query_groups", &ModelShapeConfig::num_query_groups, "key/value heads with group_query_attention")
      .at_least(1)
      .describes_new_model();
  shape.add("kv_channels", &ModelShapeConfig::kv_channels, "size of a head (none: hidden / heads)")
      .at_least(1)
      .describes_new_model();
  shape.add("seq_length", &ModelShapeConfig::seq_length, "tokens of a training sample")
      .alias({"encoder_seq_length"})
      .at_least(1);
  shape.add("max_position_embeddings", &ModelShapeConfig::max_position_embeddings, "longest sequence the model takes")
      .at_least(1)
      .describes_new_model();
  shape.add("vocab_size", &ModelShapeConfig::vocab_size, "tokens before padding").at_least(1);
  // The vocabulary is padded so that tp ranks get equal shares, and to a multiple of 128 that suits matrix products.
  shape.add("padded_vocab_size", &ModelShapeConfig::padded_vocab_size, "tokens after padding (none: computed)")
      .at_least(1)
      .describes_new_model();
  shape
      .add("make_vocab_size_divisible_by", &ModelShapeConfig::make_vocab_size_divisible_by,
           "the padded vocabulary is a multiple of this times tp")
      .at_least(1);
  shape.add("untie_embeddings_and_output_weights", &ModelShapeConfig::untie_embeddings, "a separate output matrix")
      .pretrain_default(false)
      .describes_new_model();
  shape.add("mtp_num_layers", &ModelShapeConfig::mtp_num_layers, "multi-token-prediction depths")
      .at_least(0)
      .no_pretrain_default();
  shape
      .add("mtp_loss_scaling_factor", &ModelShapeConfig::mtp_loss_scaling_factor,
           "weight of the loss of multi-token prediction")
      .at_least(0);
}

// Contents of a layer: norm, activation, biases, dropout.
void add_layer(OptionList& list) {
  auto layer = list.part(&TrainingArguments::layer);
  layer.add("normalization", &LayerConfig::normalization, "kind of norm")
      .pretrain_default(Normalization::kLayerNorm)
      .describes_new_model();
  layer.add("layernorm_epsilon", &LayerConfig::norm_epsilon, "added to the variance")
      .alias({"norm_epsilon"})
      .at_least(0)
      .pretrain_default(1e-5)
      .describes_new_model();
  // At most one of these three, as in Megatron; without any of them the activation is GELU.
  layer.add("swiglu", &LayerConfig::swiglu, "gated SiLU MLP").pretrain_default(false).describes_new_model();
  layer.add("squared_relu", &LayerConfig::squared_relu, "squared ReLU MLP")
      .pretrain_default(false)
      .describes_new_model();
  layer.add("quick_geglu", &LayerConfig::quick_geglu, "gated quick-GELU MLP")
      .pretrain_default(false)
      .describes_new_model();
  layer.add("add_bias_linear", &LayerConfig::add_bias_linear, "biases in linear layers")
      .negated_by({"disable_bias_linear"})
      .pretrain_default(true)
      .describes_new_model();
  layer.add("add_qkv_bias", &LayerConfig::add_qkv_bias, "bias in the query/key/value projection")
      .pretrain_default(false)
      .describes_new_model();
  layer.add("qk_layernorm", &LayerConfig::qk_layernorm, "norm on queries and keys")
      .pretrain_default(false)
      .describes_new_model();
  // The reference's remedies for numeric problems of fp16; none is needed here, for the reasons given.
  layer.add("apply_layernorm_1p", &LayerConfig::apply_layernorm_1p, "norm weights stored as w - 1")
      .pretrain_default(false)
      .no_effect("norm weights are stored as they are; they do not decay, so training is the same");
  layer
      .add("apply_query_key_layer_scaling", &LayerConfig::apply_query_key_layer_scaling,
           "scale attention scores by the layer number")
      .pretrain_default(false)
      .no_effect("scores and their softmax are computed in fp32 and need no scaling");
  layer.add("attention_softmax_in_fp32", &LayerConfig::attention_softmax_in_fp32, "attention softmax in fp32")
      .pretrain_default(false)
      .no_effect("always so");
  // Megatron's default is dropout of 0.1, which hardly any recent model uses: set both to 0 unless it is meant.
  layer.add("hidden_dropout", &LayerConfig::hidden_dropout, "dropout after attention and MLP")
      .at_least(0)
      .at_most(1)
      .pretrain_default(0.1);
  layer.add("attention_dropout", &LayerConfig::attention_dropout, "dropout on attention probabilities")
      .at_least(0)
      .at_most(1)
      .pretrain_default(0.1);
  layer.add("init_method_std", &LayerConfig::init_method_std, "standard deviation of fresh weights")
      .at_least(0)
      .pretrain_default(0.02);
  layer.add("attention_output_gate", &LayerConfig::attention_output_gate, "sigmoid gate on the attention output")
      .pretrain_default(false)
      .describes_new_model();
  layer
      .add("window_size", &LayerConfig::window_size,
           "left,right: tokens before itself that a query sees (-1: all), and 0 (none: no window)")
      .describes_new_model();
  layer
      .add("window_attn_skip_freq", &LayerConfig::window_attn_skip_freq,
           "every n-th layer has no window, or a list such as ([1]*3+[0]) whose zeros have none")
      .describes_new_model();
}

// Positions and multi-latent attention. Two families of rotary scaling exist side by side, as in Megatron: the first
// group is for ordinary attention, rope_type and the yarn options for latent attention.
void add_position(OptionList& list) {
  list.topic("Positions and latent attention");
  auto position = list.part(&TrainingArguments::position);
  position.add("position_embedding_type", &PositionConfig::type, "how positions enter the model")
      .alias({"use_rotary_position_embeddings"})
      .bool_words("rope", "learned_absolute")
      .refuse({"relative"}, "relative position buckets belong to T5, which is not part of Megalith")
      .refuse({"mrope"}, "it is for images and videos; set rope")
      .pretrain_default(PositionEmbedding::kLearnedAbsolute)
      .describes_new_model();
  position.add("rotary_base", &PositionConfig::rotary_base, "base of the rotation frequencies")
      .pretrain_default(10000)
      .describes_new_model();
  position.add("rotary_percent", &PositionConfig::rotary_percent, "part of a head that rotates")
      .at_least(0)
      .at_most(1)
      .pretrain_default(1.0)
      .describes_new_model();
  position.add("rotary_interleaved", &PositionConfig::rotary_interleaved, "rotate neighbors instead of halves")
      .pretrain_default(false)
      .describes_new_model();
  position
      .add("rotary_seq_len_interpolation_factor", &PositionConfig::rotary_interpolation_factor,
           "linear stretch of positions")
      .describes_new_model();
  position.add("use_rope_scaling", &PositionConfig::use_rope_scaling, "llama 3 scaling")
      .pretrain_default(false)
      .describes_new_model();
  position.add("rope_scaling_factor", &PositionConfig::rope_scaling_factor, "factor of llama 3 scaling")
      .pretrain_default(8.0);
  position.add("rope_type", &PositionConfig::rope_type, "latent attention: rope or yarn (none: yarn)")
      .describes_new_model();
  position.add("rotary_scaling_factor", &PositionConfig::rotary_scaling_factor, "latent attention: yarn factor")
      .pretrain_default(1.0);
  position
      .add("original_max_position_embeddings", &PositionConfig::original_max_position_embeddings,
           "yarn: length the model was first trained for")
      .pretrain_default(4096);
  position.add("beta_fast", &PositionConfig::beta_fast, "yarn: where scaling starts").pretrain_default(32);
  position.add("beta_slow", &PositionConfig::beta_slow, "yarn: where scaling is full").pretrain_default(1);
  position.add("mscale", &PositionConfig::mscale, "yarn: attention temperature").pretrain_default(1.0);
  position.add("mscale_all_dim", &PositionConfig::mscale_all_dim, "yarn: attention temperature, all dimensions")
      .pretrain_default(0.0);
  position.add("add_position_embedding", &PositionConfig::add_embedding, "whether learned positions are added")
      .negated_by({"no_position_embedding"})
      .no_effect(
          "positions are chosen by position_embedding_type; false is refused unless that is rope, as in Megatron");

  // Sizes of DeepSeek's attention: queries, keys and values pass through a narrow layer, and only part of a head
  // rotates.
  auto mla = list.part(&TrainingArguments::mla);
  mla.add("multi_latent_attention", &MlaConfig::multi_latent_attention, "DeepSeek's low-rank attention")
      .describes_new_model();
  mla.add("q_lora_rank", &MlaConfig::q_lora_rank, "query compression (none: no compression)")
      .at_least(1)
      .describes_new_model();
  mla.add("kv_lora_rank", &MlaConfig::kv_lora_rank, "key/value compression")
      .at_least(1)
      .pretrain_default(32)
      .describes_new_model();
  mla.add("qk_head_dim", &MlaConfig::qk_head_dim, "unrotated part of a query/key head")
      .at_least(1)
      .pretrain_default(128)
      .describes_new_model();
  mla.add("qk_pos_emb_head_dim", &MlaConfig::qk_pos_emb_head_dim, "rotated part of a query/key head")
      .at_least(1)
      .pretrain_default(64)
      .describes_new_model();
  mla.add("v_head_dim", &MlaConfig::v_head_dim, "size of a value head")
      .at_least(1)
      .pretrain_default(128)
      .describes_new_model();
}

}  // namespace

void add_model_options(OptionList& list) {
  add_source(list);
  add_shape(list);
  add_layer(list);
  add_position(list);
}

}  // namespace megalith::config
