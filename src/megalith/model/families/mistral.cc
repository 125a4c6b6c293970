// mistral: sliding_window is a number in the first release and null since version 0.2 of the 7B model.
#include "megalith/model/families/decoder_internal.h"

namespace megalith::model {

// Llama with a sliding window in every layer.
Family mistral_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_decoder(config);
    if (const auto window = config.optional_positive<int64_t>("sliding_window"))
      c.windows.assign(static_cast<size_t>(c.num_layers), *window);
    return c;
  };
  return {"mistral", "MistralForCausalLM", read, decoder_names()};
}

}  // namespace megalith::model
