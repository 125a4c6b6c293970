// Sizes are read from the file: the defaults of transformers' classes are those of one model, and wrong for others.
// Only what all published files agree on has a default here.
#include "megalith/model/families/vision.h"

#include <fmt/ranges.h>

#include "megalith/base/error.h"
#include "megalith/model/families/decoder_internal.h"

namespace megalith::model {

namespace {

// A rule for each of a module's weight and bias; rules for tensors that a tower lacks do no harm.
void add_module(std::vector<hf::NameRule>& rules, const std::string& theirs, const std::string& ours) {
  for (const char* tensor : {".weight", ".bias"}) rules.push_back({theirs + tensor, {"vision." + ours + tensor}});
}

void add_merger(std::vector<hf::NameRule>& rules, VisionFiles files, const std::string& theirs,
                const std::string& ours) {
  const bool numbered = files != VisionFiles::kQwen3;
  add_module(rules, theirs + (numbered ? ".ln_q" : ".norm"), ours + ".norm");
  add_module(rules, theirs + (numbered ? ".mlp.0" : ".linear_fc1"), ours + ".up");
  add_module(rules, theirs + (numbered ? ".mlp.2" : ".linear_fc2"), ours + ".down");
}

}  // namespace

nn::VisionShape read_vision(const io::JsonFields& vision, VisionFiles files) {
  nn::VisionShape shape;
  shape.depth = vision.positive<int64_t>("depth");
  shape.heads = vision.positive<int64_t>("num_heads");
  shape.channels =
      vision.optional_positive<int64_t>(vision.has("in_channels") ? "in_channels" : "in_chans").value_or(3);
  shape.patch = vision.positive<int64_t>("patch_size");
  shape.time_patch = vision.optional_positive<int64_t>("temporal_patch_size").value_or(2);
  shape.merge = vision.optional_positive<int64_t>("spatial_merge_size").value_or(2);
  shape.init_std = vision.optional_positive<double>("initializer_range").value_or(0.02);
  if (const auto rope = vision.optional_object("rope_parameters"))
    shape.rope_theta = rope->optional_positive<double>("rope_theta").value_or(shape.rope_theta);
  if (files == VisionFiles::kQwen2) {
    shape.width = vision.positive<int64_t>("embed_dim");
    shape.out_width = vision.positive<int64_t>("hidden_size");
    // Files write 4 or 4.0; other classes of towers write a fraction.
    const double ratio = vision.optional_positive<double>("mlp_ratio").value_or(4);
    shape.mlp_width = static_cast<int64_t>(static_cast<double>(shape.width) * ratio);
  } else {
    shape.width = vision.positive<int64_t>("hidden_size");
    shape.out_width = vision.positive<int64_t>("out_hidden_size");
    shape.mlp_width = vision.positive<int64_t>("intermediate_size");
  }
  if (files == VisionFiles::kQwen2_5) {
    shape.norm = ops::NormKind::kRms;
    shape.gated_mlp = true;
    shape.window = vision.positive<int64_t>("window_size");
    shape.full_blocks = vision.required<std::vector<int64_t>>("fullatt_block_indexes");
  }
  if (files == VisionFiles::kQwen3 || files == VisionFiles::kOmni) {
    shape.patch_bias = true;
    shape.positions = vision.positive<int64_t>("num_position_embeddings");
    // Qwen3.5 has no deepstack: the list is absent or empty.
    shape.deepstack_blocks =
        vision.optional<std::vector<int64_t>>("deepstack_visual_indexes").value_or(std::vector<int64_t>{});
  }
  // Files of Qwen2-VL do not say it.
  if (files == VisionFiles::kQwen2 && !vision.has("hidden_act"))
    shape.activation = ops::Activation::kQuickGelu;
  else
    shape.activation = read_activation(vision, "hidden_act");
  const auto found = nn::problems(shape);
  check<ConfigError>(found.empty(), "{}: {}", vision.file_name(), fmt::join(found, "\n"));
  return shape;
}

std::vector<hf::NameRule> vision_rules(const nn::VisionShape& shape, VisionFiles files, const std::string& prefix) {
  std::vector<hf::NameRule> rules;
  const auto add = [&](const std::string& theirs, const std::string& ours) {
    add_module(rules, prefix + theirs, ours);
  };
  // A convolution whose kernel is as large as its stride: one product per patch.
  add("patch_embed.proj", "patch");
  rules[0].kernel = {shape.channels, shape.time_patch, shape.patch, shape.patch};
  add("pos_embed", "positions");
  const std::string block = "blocks.{}.";
  add(block + "norm1", block + "attention_norm");
  add(block + "attn.qkv", block + "attention.qkv");
  add(block + "attn.proj", block + "attention.proj");
  add(block + "norm2", block + "mlp_norm");
  if (files == VisionFiles::kQwen2_5) {
    for (const std::string part : {"gate", "up", "down"}) add(block + "mlp." + part + "_proj", block + "mlp." + part);
  } else {
    const std::string name = files == VisionFiles::kQwen2 ? "mlp.fc" : "mlp.linear_fc";
    add(block + name + "1", block + "mlp.up");
    add(block + name + "2", block + "mlp.down");
  }
  add_merger(rules, files, prefix + "merger", "merger");
  if (!shape.deepstack_blocks.empty())
    add_merger(rules, files, prefix + (files == VisionFiles::kOmni ? "merger_list.{}" : "deepstack_merger_list.{}"),
               "deepstack.{}");
  return rules;
}

}  // namespace megalith::model
