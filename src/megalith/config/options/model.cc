#include "megalith/config/option_list_internal.h"

namespace megalith::config {
namespace {

constexpr const char* kNoHub = "nothing is fetched from the network; give a folder";
constexpr const char* kInferenceOnly = "an inference setting; training does not use it";
constexpr const char* kMultimodal = "text models only; a dataset with such columns is refused when it is read";

void add_source(OptionList& list) {
  list.topic("Model", "models");
  auto source = list.part(&TrainingArguments::source);
  source
      .add("model_name_or_path", &ModelSourceConfig::model_name_or_path,
           "folder with config.json and safetensors (required by train)")
      .train_only()
      .implemented();
  source.add("train_from_scratch", &ModelSourceConfig::train_from_scratch, "take the model's shape, draw its weights")
      .implemented()
      .train_only();
  source
      .add("additional_configs", &ModelSourceConfig::additional_configs,
           "further options as JSON or a JSON file; those that are given by themselves win, unknown ones are ignored")
      .implemented()
      .train_only();
  source
      .add("split_special_tokens", &ModelSourceConfig::split_special_tokens,
           "special tokens inside text are split as text")
      .planned("data")
      .train_only();
  source.add("transformer_impl", &ModelSourceConfig::transformer_impl, "layer library of the reference")
      .no_effect("Megalith has one implementation of its layers");
}

void add_unused_settings(OptionList& list) {
  list.no_effect_all(kNoHub, {{"cache_dir", opt_text()},
                              {"model_revision", text("main")},
                              {"hf_hub_token", opt_text()},
                              {"ms_hub_token", opt_text()},
                              {"om_hub_token", opt_text()},
                              {"use_fast_tokenizer", flag(true)},
                              {"trust_remote_code", flag()},
                              {"print_param_status", flag()},
                              {"use_v1_kernels", opt_flag()}});
  list.no_effect_all(kInferenceOnly, {{"use_kv_cache", flag(true)},
                                      {"use_cache", flag()},
                                      {"infer_backend", text("huggingface")},
                                      {"infer_dtype", text("auto")},
                                      {"vllm_maxlen", integer(4096)},
                                      {"vllm_gpu_util", number(0.7)},
                                      {"vllm_enforce_eager", flag()},
                                      {"vllm_max_lora_rank", integer(32)},
                                      {"vllm_config", dict()},
                                      {"sglang_maxlen", integer(4096)},
                                      {"sglang_mem_fraction", number(0.7)},
                                      {"sglang_tp_size", integer(-1)},
                                      {"sglang_config", dict()},
                                      {"sglang_lora_backend", text("triton")}});
  list.no_effect_all("the run exports its model at the end; `megalith convert` does the rest",
                     {{"export_dir", opt_text()},
                      {"export_size", integer(5)},
                      {"export_device", text("cpu")},
                      {"export_quantization_bit", opt_integer()},
                      {"export_quantization_dataset", opt_text()},
                      {"export_quantization_nsamples", integer(128)},
                      {"export_quantization_maxlen", integer(1024)},
                      {"export_legacy_format", flag()},
                      {"export_hub_model_id", opt_text()}});
  list.no_effect_all(kMultimodal, {{"freeze_vision_tower", flag(true)},
                                   {"freeze_multi_modal_projector", flag(true)},
                                   {"freeze_language_model", flag()},
                                   {"image_max_pixels", integer(int64_t{768} * 768)},
                                   {"image_min_pixels", integer(int64_t{32} * 32)},
                                   {"image_do_pan_and_scan", flag()},
                                   {"crop_to_patches", flag()},
                                   {"video_max_pixels", integer(int64_t{256} * 256)},
                                   {"video_min_pixels", integer(int64_t{16} * 16)},
                                   {"video_fps", number(2.0)},
                                   {"video_maxlen", integer(128)},
                                   {"use_audio_in_video", flag()},
                                   {"audio_sampling_rate", integer(16000)},
                                   {"media_dir", opt_text()}});
}

void add_refused_settings(OptionList& list) {
  list.refused_all("the vocabulary of a checkpoint is not grown; add the tokens to the model folder first",
                   {{"resize_vocab", flag()},
                    {"add_tokens", opt_text()},
                    {"add_special_tokens", opt_text()},
                    {"new_special_tokens_config", opt_text()},
                    {"init_special_tokens", text("noise_init")}});
  list.refused_all("quantized weights are not part of Megalith", {{"quantization_method", text("bnb")},
                                                                  {"quantization_bit", opt_integer()},
                                                                  {"quantization_type", text("nf4")},
                                                                  {"double_quantization", flag(true)},
                                                                  {"quantization_device_map", opt_text()},
                                                                  {"ref_model_quantization_bit", opt_integer()},
                                                                  {"reward_model_quantization_bit", opt_integer()}});
  list.refused("rope_scaling", opt_text(), "write rope_scaling into the model folder's config.json");
  list.refused_all("it changes the model; Megalith trains the model as its config.json describes it",
                   {{"use_unsloth", flag()},
                    {"shift_attn", flag()},
                    {"mixture_of_depths", opt_text()},
                    {"use_llama_pro", flag()},
                    {"use_kt", flag()},
                    {"use_kt_optimize_rule", flag()},
                    {"kt_optimize_rule", opt_text()},
                    {"kt_cpu_activation", opt_text()},
                    {"kt_weight_path", opt_text()},
                    {"kt_non_expert_weight_path", opt_text()},
                    {"kt_expert_checkpoint_path", opt_text()},
                    {"kt_use_lora_experts", opt_flag()},
                    {"kt_lora_expert_num", opt_integer()},
                    {"kt_lora_expert_intermediate_size", opt_integer()}});
}

void add_shape(OptionList& list) {
  list.topic("Model shape", "models");
  auto shape = list.part(&TrainingArguments::shape);
  shape.add("num_layers", &ModelShapeConfig::num_layers, "decoder layers").at_least(1).implemented();
  shape.add("hidden_size", &ModelShapeConfig::hidden_size, "width of the residual stream").at_least(1).implemented();
  shape
      .add("ffn_hidden_size", &ModelShapeConfig::ffn_hidden_size,
           "MLP width (none: 4h; with swiglu 4h*2/3 rounded down to a multiple of 64)")
      .at_least(1)
      .implemented();
  shape.add("num_attention_heads", &ModelShapeConfig::num_attention_heads, "query heads").at_least(1).implemented();
  shape.add("group_query_attention", &ModelShapeConfig::group_query_attention, "fewer key/value heads than query heads")
      .implemented();
  shape.add("num_query_groups", &ModelShapeConfig::num_query_groups, "key/value heads with group_query_attention")
      .at_least(1)
      .implemented();
  shape.add("kv_channels", &ModelShapeConfig::kv_channels, "size of a head (none: hidden / heads)")
      .at_least(1)
      .implemented();
  shape.add("seq_length", &ModelShapeConfig::seq_length, "tokens of a training sample")
      .alias({"encoder_seq_length"})
      .at_least(1)
      .implemented();
  shape.add("max_position_embeddings", &ModelShapeConfig::max_position_embeddings, "longest sequence the model takes")
      .at_least(1)
      .implemented();
  shape.add("vocab_size", &ModelShapeConfig::vocab_size, "tokens before padding").at_least(1).implemented();
  shape.add("padded_vocab_size", &ModelShapeConfig::padded_vocab_size, "tokens after padding (none: computed)")
      .at_least(1)
      .implemented();
  shape
      .add("make_vocab_size_divisible_by", &ModelShapeConfig::make_vocab_size_divisible_by,
           "the padded vocabulary is a multiple of this times tp")
      .at_least(1)
      .implemented();
  shape.add("untie_embeddings_and_output_weights", &ModelShapeConfig::untie_embeddings, "an output matrix of its own")
      .pretrain_default(false)
      .implemented();
  shape.add("mtp_num_layers", &ModelShapeConfig::mtp_num_layers, "multi-token-prediction depths")
      .at_least(0)
      .no_pretrain_default()
      .implemented();
  shape.add("mtp_loss_scaling_factor", &ModelShapeConfig::mtp_loss_scaling_factor, "weight of their loss")
      .at_least(0)
      .implemented();
}

void add_layer(OptionList& list) {
  auto layer = list.part(&TrainingArguments::layer);
  layer.add("normalization", &LayerConfig::normalization, "kind of norm")
      .pretrain_default(Normalization::kLayerNorm)
      .implemented();
  layer.add("layernorm_epsilon", &LayerConfig::norm_epsilon, "added to the variance")
      .alias({"norm_epsilon"})
      .at_least(0)
      .pretrain_default(1e-5)
      .implemented();
  layer.add("swiglu", &LayerConfig::swiglu, "gated SiLU MLP").pretrain_default(false).implemented();
  layer.add("squared_relu", &LayerConfig::squared_relu, "squared ReLU MLP").pretrain_default(false).implemented();
  layer.add("quick_geglu", &LayerConfig::quick_geglu, "gated quick-GELU MLP").pretrain_default(false).implemented();
  layer.add("add_bias_linear", &LayerConfig::add_bias_linear, "biases in linear layers")
      .negated_by({"disable_bias_linear"})
      .pretrain_default(true)
      .implemented();
  layer.add("add_qkv_bias", &LayerConfig::add_qkv_bias, "bias in the query/key/value projection")
      .pretrain_default(false)
      .implemented();
  layer.add("qk_layernorm", &LayerConfig::qk_layernorm, "norm on queries and keys")
      .pretrain_default(false)
      .implemented();
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
  layer.add("hidden_dropout", &LayerConfig::hidden_dropout, "after attention and MLP")
      .at_least(0)
      .at_most(1)
      .pretrain_default(0.1)
      .implemented();
  layer.add("attention_dropout", &LayerConfig::attention_dropout, "on attention probabilities")
      .at_least(0)
      .at_most(1)
      .pretrain_default(0.1)
      .implemented();
  layer.add("init_method_std", &LayerConfig::init_method_std, "standard deviation of fresh weights")
      .at_least(0)
      .pretrain_default(0.02)
      .implemented();
  layer.add("attention_output_gate", &LayerConfig::attention_output_gate, "sigmoid gate on the attention output")
      .pretrain_default(false);
}

void add_position(OptionList& list) {
  list.topic("Positions and latent attention", "models");
  auto position = list.part(&TrainingArguments::position);
  position.add("position_embedding_type", &PositionConfig::type, "how positions enter the model")
      .refuse({"relative"}, "relative position buckets belong to T5, which is not part of Megalith")
      .pretrain_default(PositionEmbedding::kLearnedAbsolute)
      .implemented();
  position.add("rotary_base", &PositionConfig::rotary_base, "base of the rotation frequencies")
      .pretrain_default(10000)
      .implemented();
  position.add("rotary_percent", &PositionConfig::rotary_percent, "part of a head that rotates")
      .at_least(0)
      .at_most(1)
      .pretrain_default(1.0);
  position.add("rotary_interleaved", &PositionConfig::rotary_interleaved, "rotate neighbours in place of halves")
      .pretrain_default(false);
  position
      .add("rotary_seq_len_interpolation_factor", &PositionConfig::rotary_interpolation_factor,
           "linear stretch of positions")
      .implemented();
  position.add("use_rope_scaling", &PositionConfig::use_rope_scaling, "llama 3 scaling")
      .pretrain_default(false)
      .implemented();
  position.add("rope_scaling_factor", &PositionConfig::rope_scaling_factor, "its factor")
      .pretrain_default(8.0)
      .implemented();
  position.add("rope_type", &PositionConfig::rope_type, "latent attention: rope or yarn").implemented();
  position.add("rotary_scaling_factor", &PositionConfig::rotary_scaling_factor, "latent attention: yarn factor")
      .pretrain_default(1.0)
      .implemented();
  position
      .add("original_max_position_embeddings", &PositionConfig::original_max_position_embeddings,
           "yarn: length the model was first trained for")
      .pretrain_default(4096)
      .implemented();
  position.add("beta_fast", &PositionConfig::beta_fast, "yarn: where scaling starts")
      .pretrain_default(32)
      .implemented();
  position.add("beta_slow", &PositionConfig::beta_slow, "yarn: where scaling is full")
      .pretrain_default(1)
      .implemented();
  position.add("mscale", &PositionConfig::mscale, "yarn: attention temperature").pretrain_default(1.0).implemented();
  position.add("mscale_all_dim", &PositionConfig::mscale_all_dim, "yarn: attention temperature, all dimensions")
      .pretrain_default(0.0)
      .implemented();
  list.no_effect("add_position_embedding", flag(true), "positions are chosen by position_embedding_type")
      .negated_by({"no_position_embedding"});
  list.refused("use_rotary_position_embeddings", flag(), "deprecated; write position_embedding_type rope");

  auto mla = list.part(&TrainingArguments::mla);
  mla.add("multi_latent_attention", &MlaConfig::multi_latent_attention, "DeepSeek's low-rank attention").implemented();
  mla.add("q_lora_rank", &MlaConfig::q_lora_rank, "query compression (none: no compression)").at_least(1).implemented();
  mla.add("kv_lora_rank", &MlaConfig::kv_lora_rank, "key/value compression")
      .at_least(1)
      .pretrain_default(32)
      .implemented();
  mla.add("qk_head_dim", &MlaConfig::qk_head_dim, "unrotated part of a query/key head")
      .at_least(1)
      .pretrain_default(128)
      .implemented();
  mla.add("qk_pos_emb_head_dim", &MlaConfig::qk_pos_emb_head_dim, "rotated part of a query/key head")
      .at_least(1)
      .pretrain_default(64)
      .implemented();
  mla.add("v_head_dim", &MlaConfig::v_head_dim, "size of a value head").at_least(1).pretrain_default(128).implemented();
}

}  // namespace

void add_model_options(OptionList& list) {
  add_source(list);
  add_unused_settings(list);
  add_refused_settings(list);
  add_shape(list);
  add_layer(list);
  add_position(list);
}

}  // namespace megalith::config
