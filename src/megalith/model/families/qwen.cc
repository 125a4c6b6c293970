// qwen2 and qwen3. qwen2's biases on query, key and value are fixed and have no key in config.json. Windows are off in
// the published models (use_sliding_window is false), although sliding_window has a number there.
#include "megalith/model/families/decoder_internal.h"

namespace megalith::model {

// Llama with biases on query, key and value, and a window in some layers.
Family qwen2_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_decoder(config);
    c.qkv_bias = true;
    c.windows = read_windows(config, c.num_layers);
    return c;
  };
  return {"qwen2", "Qwen2ForCausalLM", read, decoder_names()};
}

// Norms on each query and key head instead of biases; the head size is a separate field.
Family qwen3_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_decoder(config);
    if (!config.has("head_dim")) c.head_dim = 128;  // the family's default, regardless of the hidden size
    c.rope = read_rope(config, c.head_dim, c.max_positions);
    c.qk_norm = true;
    c.qkv_bias = c.out_bias = config.optional<bool>("attention_bias").value_or(false);
    c.windows = read_windows(config, c.num_layers);
    return c;
  };
  return {"qwen3", "Qwen3ForCausalLM", read, decoder_names()};
}

}  // namespace megalith::model
