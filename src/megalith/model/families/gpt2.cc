// gpt2: layer norms with biases, learned positions, biases everywhere, an MLP without a gate, tied embeddings, dropout
// of 0.1 by default. Keys have their own names: n_embd, n_layer, n_head, n_inner (null means 4 · n_embd), n_positions,
// layer_norm_epsilon, activation_function, embd_pdrop, resid_pdrop, attn_pdrop. scale_attn_weights and
// scale_attn_by_inverse_layer_idx change the factor of the scores.
#include "megalith/model/families/decoder_internal.h"

namespace megalith::model {

namespace {

ModelConfig read_gpt2(const io::JsonFields& config) {
  ModelConfig c;
  c.hidden_size = config.positive<int64_t>("n_embd");
  c.num_layers = config.positive<int64_t>("n_layer");
  c.num_heads = c.num_kv_heads = config.positive<int64_t>("n_head");
  if (c.hidden_size % c.num_heads != 0) config.refuse("n_head", "divide n_embd");
  c.head_dim = c.hidden_size / c.num_heads;
  c.mlp_width = config.optional_positive<int64_t>("n_inner").value_or(4 * c.hidden_size);
  c.vocab_size = config.positive<int64_t>("vocab_size");
  c.max_positions = config.positive<int64_t>("n_positions");
  c.norm = ops::NormKind::kLayer;
  c.norm_epsilon = config.optional_positive<double>("layer_norm_epsilon").value_or(1e-5);
  c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.gated_mlp = false;
  c.activation = read_activation(config, "activation_function");
  c.learned_positions = true;
  c.tied_embeddings = config.optional<bool>("tie_word_embeddings").value_or(true);
  c.embedding_dropout = config.optional<double>("embd_pdrop").value_or(0.1);
  c.hidden_dropout = config.optional<double>("resid_pdrop").value_or(0.1);
  c.attention_dropout = config.optional<double>("attn_pdrop").value_or(0.1);
  if (!config.optional<bool>("scale_attn_weights").value_or(true)) c.attention_scale = 1;
  c.scale_by_inverse_layer = config.optional<bool>("scale_attn_by_inverse_layer_idx").value_or(false);
  if (config.optional<bool>("add_cross_attention").value_or(false))
    config.refuse("add_cross_attention", "be false: a decoder with cross-attention is not supported");
  c.init_std = config.optional_positive<double>("initializer_range").value_or(0.02);
  c.dtype = read_dtype(config);
  return c;
}

// Conv1D stores [in, out]; c_attn is query | key | value along the outputs.
hf::NameMap gpt2_names() {
  const auto layer = [](const std::string& theirs, const std::vector<std::string>& ours, bool transposed = false) {
    hf::NameRule rule{"transformer.h.{}." + theirs, {}, transposed};
    for (const std::string& name : ours) rule.ours.push_back("layers.{}." + name);
    return rule;
  };
  return {
      .rules = {{"transformer.wte.weight", {"embedding.weight"}},
                {"transformer.wpe.weight", {"position_embedding.weight"}},
                layer("ln_1.weight", {"attention_norm.weight"}),
                layer("ln_1.bias", {"attention_norm.bias"}),
                layer("attn.c_attn.weight", {"attention.q.weight", "attention.k.weight", "attention.v.weight"}, true),
                layer("attn.c_attn.bias", {"attention.q.bias", "attention.k.bias", "attention.v.bias"}),
                layer("attn.c_proj.weight", {"attention.o.weight"}, true),
                layer("attn.c_proj.bias", {"attention.o.bias"}),
                layer("ln_2.weight", {"mlp_norm.weight"}),
                layer("ln_2.bias", {"mlp_norm.bias"}),
                layer("mlp.c_fc.weight", {"mlp.up.weight"}, true),
                layer("mlp.c_fc.bias", {"mlp.up.bias"}),
                layer("mlp.c_proj.weight", {"mlp.down.weight"}, true),
                layer("mlp.c_proj.bias", {"mlp.down.bias"}),
                {"transformer.ln_f.weight", {"final_norm.weight"}},
                {"transformer.ln_f.bias", {"final_norm.bias"}},
                {"lm_head.weight", {"head.weight"}}},
      .ignored = {"*h.*.attn.bias", "*h.*.attn.masked_bias"},  // causal masks
      // The original files of OpenAI's model lack the prefix that transformers writes.
      .optional_prefix = "transformer."};
}

}  // namespace

Family gpt2_family() { return {"gpt2", "GPT2LMHeadModel", read_gpt2, gpt2_names()}; }

}  // namespace megalith::model
