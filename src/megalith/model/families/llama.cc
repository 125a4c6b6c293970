// llama: the plainest decoder: RMS norms, rotary positions, grouped-query attention, a gated MLP. Optional keys of its
// own are attention_bias and mlp_bias, false in all published Llama models. Llama 3.1 adds rope_scaling of type llama3.
#include "megalith/model/families/decoder_internal.h"

namespace megalith::model {

Family llama_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_decoder(config);
    c.qkv_bias = c.out_bias = config.optional<bool>("attention_bias").value_or(false);
    c.mlp_bias = config.optional<bool>("mlp_bias").value_or(false);
    return c;
  };
  return {"llama", "LlamaForCausalLM", read, decoder_names()};
}

}  // namespace megalith::model
