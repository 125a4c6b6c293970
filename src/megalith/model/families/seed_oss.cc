// seed_oss: published with attention_bias true and attention_out_bias false; residual_dropout is its name for dropout
// at the end of the residual branches.
#include "megalith/model/families/decoder_internal.h"

namespace megalith::model {

// Llama with separate switches for the biases on the inputs and on the output of attention.
Family seed_oss_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_decoder(config);
    c.qkv_bias = config.optional<bool>("attention_bias").value_or(true);
    c.out_bias = config.optional<bool>("attention_out_bias").value_or(false);
    c.mlp_bias = config.optional<bool>("mlp_bias").value_or(false);
    c.hidden_dropout = config.optional<double>("residual_dropout").value_or(0);
    return c;
  };
  return {"seed_oss", "SeedOssForCausalLM", read, decoder_names()};
}

}  // namespace megalith::model
