// ModelConfig: the resolved description of a model. Every family's config.json is read into these fields.
#pragma once

#include <c10/core/ScalarType.h>

#include <any>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/scale_block.h"
#include "megalith/io/json_text.h"
#include "megalith/layout/media_positions.h"
#include "megalith/nn/audio/audio_shape.h"
#include "megalith/nn/moe/moe_shape.h"
#include "megalith/nn/vision/vision_shape.h"
#include "megalith/ops/norm_rope/activation.h"
#include "megalith/ops/norm_rope/norm.h"
#include "megalith/ops/norm_rope/rope.h"

namespace megalith::model {

struct Family;  // families/family.h

// Multi-head latent attention (nn/attention/latent_attention.h).
struct LatentSizes {
  // Queries and keys/values pass through latents of these ranks; rotary channels bypass them.
  int64_t q_rank = 0;  // 0 = queries are not compressed
  int64_t kv_rank = 0;
  int64_t nope_dim = 0;    // channels of a query/key head without position
  int64_t rotary_dim = 0;  // channels with position
  int64_t value_dim = 0;
  bool operator==(const LatentSizes&) const = default;
};

// Layers with a gated delta net instead of attention (nn/attention/gated_delta_net.h).
struct DeltaNetSizes {
  // A key head serves value_heads / key_heads value heads.
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t conv_kernel = 0;
  bool apart = false;  // as nn::DeltaNetShape::apart
};

// How files keep the experts of a layer.
enum class ExpertStorage {
  kEach,               // one tensor per expert and projection
  kStacked,            // gate_up_proj [E, 2i, h] and down_proj [E, h, i]
  kStackedTransposed,  // gate_up_proj [E, h, 2i] and down_proj [E, i, h]
};

// The tokens that stand for media, one for each row of a tower's output, and how their positions count.
struct MediaTokens {
  // Ids of the placeholders; -1: the model takes no such media.
  int64_t image = -1;
  int64_t video = -1;
  int64_t audio = -1;
  layout::PositionSettings positions;
  bool operator==(const MediaTokens&) const = default;
};

// The form of a model's files, where those of a family come in several: exports write the form that was read.
struct FileForm {
  std::string model_prefix = "model.";  // begins names in files that begin with "model." in the family
  std::string head_prefix;              // stands before "lm_head." in files
  std::string vision_prefix;            // begins the names of the vision tower's tensors
  std::string audio_prefix;             // and of the audio tower's
  ExpertStorage experts = ExpertStorage::kEach;
  ExpertStorage mtp_experts = ExpertStorage::kEach;  // those of multi-token-prediction layers
};

// Everything that decides the computation and the names of a model, for any family. Zero and empty mean absent. Legend:
// h hidden, n heads, d head size, v vocabulary.
struct ModelConfig {
  std::string family;                        // model_type: "llama"
  std::shared_ptr<const Family> own_family;  // defined by the program; nullptr = the one of that name in families()

  // Sizes. head_dim need not be hidden_size / num_heads.
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t mlp_width = 0;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;

  // Norms, all of one kind.
  ops::NormKind norm = ops::NormKind::kRms;
  double norm_epsilon = 1e-6;
  bool zero_centered_norms = false;  // weights are stored as w - 1
  bool qk_norm = false;              // on each query and key head

  // Attention.
  bool qkv_bias = false;
  bool out_bias = false;         // a bias on attention's output projection
  std::vector<int64_t> windows;  // per layer, tokens a query sees; 0 = all; empty if all layers see all
  // Factor of the scores q·k before the softmax.
  double attention_scale = 0;           // 0 = 1/sqrt(head_dim)
  bool scale_by_inverse_layer = false;  // layer i also divides its scores by i + 1
  bool attention_output_gate = false;   // rows of q are query | gate, head by head
  // Kinds of attention other than self-attention with n heads.
  std::optional<LatentSizes> latent;  // replaces the heads above; head_dim is nope_dim + rotary_dim
  std::optional<DeltaNetSizes> delta_net;
  std::vector<bool> delta_net_layers;  // per layer, whether it is a delta net; empty if none is
  // The MLP of layers without experts.
  ops::Activation activation = ops::Activation::kSilu;
  bool gated_mlp = true;
  bool mlp_bias = false;
  // Layers with experts instead of the MLP. Of the shape, only the router, the widths and the gate are set here; the
  // rest follows from the fields of the model.
  std::optional<nn::MoeShape> moe;
  std::vector<bool> moe_layers;  // per layer, whether it has experts; empty without `moe`

  // Positions: a learned table, rotary angles, or neither.
  bool learned_positions = false;
  std::optional<ops::RopeSettings> rope;
  // Embedding, head, and the layers after the model.
  bool tied_embeddings = false;  // the head uses the weight of the embedding

  // The tower that turns images and videos into rows in place of token embeddings. Without it, a model that sees is the
  // text model alone, and the tensors of its tower are carried through (see without_towers).
  std::optional<nn::VisionShape> vision;
  // The tower that does so with sounds.
  std::optional<nn::AudioShape> audio;
  std::optional<MediaTokens> media;  // for models that see or hear, with their towers or without

  // Models that score whole sequences (scores.h) have a linear layer with this many outputs in place of the head; 0
  // = the model predicts tokens.
  int64_t num_labels = 0;
  std::string problem_type;  // meaning of its scores, in transformers' words; empty if no file says so

  int64_t mtp_layers = 0;        // layers that each predict one token further ahead, in training
  double mtp_loss_factor = 0.1;  // weight of their mean loss

  // Dropout probabilities in training, and the standard deviation of initial weights.
  double embedding_dropout = 0;
  double hidden_dropout = 0;  // at the end of each residual branch
  double attention_dropout = 0;
  double init_std = 0.02;

  at::ScalarType dtype = at::kFloat;  // type of the weights in the checkpoint
  // Set where the checkpoint keeps the weights of its linear layers in 8 bits with scales (hf/block_scales.h). `dtype`
  // is then that of the values, which exports write.
  std::optional<hf::ScaleBlock> scale_block;
  // config.json as it was read. Exports write it back with the changes, so that keys unknown to Megalith survive.
  std::shared_ptr<const io::Json> source;
  // The keys that lead to the text model in a config.json that describes more than that: {"text_config"}.
  std::vector<std::string> text_keys;
  // The folder that config.json was read from, which holds the tensors that exports carry through
  // (hf::NameMap::carried); empty if it was not a folder.
  std::filesystem::path folder;
  FileForm form;
  // Data that the family's `read` stores for its own parts (Family::attention, …), of a type that only they know.
  std::any extras;

  // Answers for one layer, counted from 0 over the whole model. window() is 0 for full attention.
  bool is_moe(int64_t layer) const { return moe && moe_layers.at(static_cast<size_t>(layer)); }
  int64_t window(int64_t layer) const { return windows.empty() ? 0 : windows.at(static_cast<size_t>(layer)); }
  bool is_delta_net(int64_t layer) const {
    return !delta_net_layers.empty() && delta_net_layers.at(static_cast<size_t>(layer));
  }
};

// Returns the value that config.json has for a key, at its top or else among the keys of the text model; nullptr if
// there is none, or null.
const io::Json* config_value(const ModelConfig& config, std::string_view key);

// The towers of a model that sees or hears that a run keeps. The tensors of the others stay in the model's files.
struct TowerChoice {
  bool vision = true;
  bool audio = true;
  bool operator==(const TowerChoice&) const = default;
};
// Returns the model with no other towers than these.
ModelConfig with_towers(ModelConfig config, const TowerChoice& kept);
// Returns the text model alone.
ModelConfig without_towers(ModelConfig config);

// Returns one message per inconsistent field, each with the allowed values; empty if all is well.
std::vector<std::string> problems(const ModelConfig& config);

// Returns what two models compute differently, in words ("positions", "experts"); empty if weights of one fit the other
// and give the same result. Does not compare what only training uses (dropout, initial weights), and compares neither
// delta nets nor a family's own parts.
std::vector<std::string> differences(const ModelConfig& a, const ModelConfig& b);

}  // namespace megalith::model
