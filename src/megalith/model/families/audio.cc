#include "megalith/model/families/audio.h"

#include <fmt/ranges.h>

#include "megalith/base/error.h"
#include "megalith/model/families/decoder_internal.h"

namespace megalith::model {

nn::AudioShape read_audio(const io::JsonFields& audio) {
  nn::AudioShape shape;
  shape.depth = audio.positive<int64_t>("encoder_layers");
  shape.width = audio.positive<int64_t>("d_model");
  shape.heads = audio.positive<int64_t>("encoder_attention_heads");
  shape.mlp_width = audio.positive<int64_t>("encoder_ffn_dim");
  shape.out_width = audio.positive<int64_t>("output_dim");
  shape.activation = read_activation(audio, "activation_function");
  shape.mel_bins = audio.positive<int64_t>("num_mel_bins");
  shape.conv_channels = audio.positive<int64_t>("downsample_hidden_size");
  shape.chunk = 2 * audio.positive<int64_t>("n_window");
  shape.window = audio.positive<int64_t>("n_window_infer");
  shape.conv_chunks = audio.optional_positive<int64_t>("conv_chunksize").value_or(shape.conv_chunks);
  shape.init_std = audio.optional_positive<double>("initializer_range").value_or(shape.init_std);
  const auto found = nn::problems(shape);
  check<ConfigError>(found.empty(), "{}: {}", audio.file_name(), fmt::join(found, "\n"));
  return shape;
}

std::vector<hf::NameRule> audio_rules(const nn::AudioShape& shape, const std::string& prefix) {
  std::vector<hf::NameRule> rules;
  const auto add = [&](const std::string& theirs, const std::string& ours) {
    for (const char* tensor : {".weight", ".bias"})
      rules.push_back({prefix + theirs + tensor, {"audio." + ours + tensor}});
  };
  for (const std::string number : {"1", "2", "3"}) {
    add("conv2d" + number, "conv" + number);
    rules[rules.size() - 2].kernel = {number == "1" ? 1 : shape.conv_channels, 3, 3};
  }
  add("conv_out", "frame");
  const std::string theirs = "layers.{}.", ours = "blocks.{}.";
  add(theirs + "self_attn_layer_norm", ours + "attention_norm");
  for (const std::string part : {"q", "k", "v"})
    add(theirs + "self_attn." + part + "_proj", ours + "attention." + part);
  add(theirs + "self_attn.out_proj", ours + "attention.proj");
  add(theirs + "final_layer_norm", ours + "mlp_norm");
  add(theirs + "fc1", ours + "mlp.up");
  add(theirs + "fc2", ours + "mlp.down");
  add("ln_post", "projector.norm");
  add("proj1", "projector.up");
  add("proj2", "projector.down");
  return rules;
}

}  // namespace megalith::model
