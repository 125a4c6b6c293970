#include "tests/pipeline/latent_reference.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <numbers>

#include "megalith/hf/weight_writer.h"

namespace megalith::testing {

namespace {

constexpr int64_t kHidden = 16, kHeads = 4, kKvRank = 6, kNope = 4, kRotary = 4, kValue = 5, kWidth = 24, kVocab = 48;
constexpr double kTheta = 100, kFactor = 4, kBetaFast = 2, kBetaSlow = 0.5, kMscale = 0.8, kMscaleAll = 0.6;
constexpr int64_t kOriginal = 8;

double magnitude(double mscale) { return 0.1 * mscale * std::log(kFactor) + 1; }

// YaRN's frequencies [r/2], as arXiv:2309.00071 has them.
at::Tensor frequencies() {
  const auto channel = [](double rotations) {
    return static_cast<double>(kRotary) *
           std::log(static_cast<double>(kOriginal) / (rotations * 2 * std::numbers::pi)) / (2 * std::log(kTheta));
  };
  const double low = std::max(std::floor(channel(kBetaFast)), 0.0);
  const double high = std::min(std::ceil(channel(kBetaSlow)), static_cast<double>(kRotary - 1));
  const at::Tensor index = at::arange(kRotary / 2, at::kDouble);
  const at::Tensor ramp = ((index - low) / (high - low)).clamp(0, 1);
  const at::Tensor plain = at::pow(kTheta, index * -2 / static_cast<double>(kRotary));
  return plain / kFactor * ramp + plain * (1 - ramp);
}

// x [s, n, r], pairs side by side.
at::Tensor rotate(const at::Tensor& x) {
  const at::Tensor angle = (at::arange(x.size(0), at::kDouble).unsqueeze(1) * frequencies()).unsqueeze(1);
  const double factor = magnitude(kMscale) / magnitude(kMscaleAll);
  const at::Tensor cos = angle.cos() * factor, sin = angle.sin() * factor;
  const at::Tensor pairs = x.unflatten(2, {kRotary / 2, 2}), a = pairs.select(3, 0), b = pairs.select(3, 1);
  return at::stack({a * cos - b * sin, b * cos + a * sin}, 3).flatten(2);
}

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

void add_layer(Shapes& list, const std::string& name, int64_t q_rank) {
  const int64_t q = kHeads * (kNope + kRotary);
  list.push_back({name + "input_layernorm.weight", {kHidden}});
  if (q_rank > 0) {
    list.push_back({name + "self_attn.q_a_proj.weight", {q_rank, kHidden}});
    list.push_back({name + "self_attn.q_a_layernorm.weight", {q_rank}});
    list.push_back({name + "self_attn.q_b_proj.weight", {q, q_rank}});
  } else {
    list.push_back({name + "self_attn.q_proj.weight", {q, kHidden}});
  }
  list.push_back({name + "self_attn.kv_a_proj_with_mqa.weight", {kKvRank + kRotary, kHidden}});
  list.push_back({name + "self_attn.kv_a_layernorm.weight", {kKvRank}});
  list.push_back({name + "self_attn.kv_b_proj.weight", {kHeads * (kNope + kValue), kKvRank}});
  list.push_back({name + "self_attn.o_proj.weight", {kHidden, kHeads * kValue}});
  list.push_back({name + "post_attention_layernorm.weight", {kHidden}});
  list.push_back({name + "mlp.gate_proj.weight", {kWidth, kHidden}});
  list.push_back({name + "mlp.up_proj.weight", {kWidth, kHidden}});
  list.push_back({name + "mlp.down_proj.weight", {kHidden, kWidth}});
}

std::string layer_name(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

}  // namespace

nlohmann::json LatentConfig::to_json() const {
  return {{"model_type", "deepseek_v3"},
          {"architectures", {"DeepseekV3ForCausalLM"}},
          {"vocab_size", kVocab},
          {"hidden_size", kHidden},
          {"intermediate_size", kWidth},
          {"num_hidden_layers", layers},
          {"first_k_dense_replace", layers},
          {"num_nextn_predict_layers", mtp},
          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kHeads},
          {"q_lora_rank", q_rank > 0 ? nlohmann::json(q_rank) : nlohmann::json(nullptr)},
          {"kv_lora_rank", kKvRank},
          {"qk_nope_head_dim", kNope},
          {"qk_rope_head_dim", kRotary},
          {"v_head_dim", kValue},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", tied},
          {"rope_theta", kTheta},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", kFactor},
            {"original_max_position_embeddings", kOriginal},
            {"beta_fast", kBetaFast},
            {"beta_slow", kBetaSlow},
            {"mscale", kMscale},
            {"mscale_all_dim", kMscaleAll}}},
          {"torch_dtype", "float32"}};
}

LatentReference::LatentReference(const LatentConfig& config, uint64_t seed) : config_(config) {
  Shapes shapes{{"model.embed_tokens.weight", {kVocab, kHidden}}, {"model.norm.weight", {kHidden}}};
  if (!config.tied) shapes.push_back({"lm_head.weight", {kVocab, kHidden}});
  for (int64_t i = 0; i < config.layers + config.mtp; ++i) add_layer(shapes, layer_name(i), config.q_rank);
  for (int64_t i = config.layers; i < config.layers + config.mtp; ++i) {
    for (const char* norm : {"enorm", "hnorm", "shared_head.norm"})
      shapes.push_back({layer_name(i) + norm + ".weight", {kHidden}});
    shapes.push_back({layer_name(i) + "eh_proj.weight", {kHidden, 2 * kHidden}});
  }
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const auto& [name, shape] : shapes) {
    const at::Tensor numbers = at::randn(shape, generator, at::kFloat);
    const double size =
        shape.size() == 1 || name == "model.embed_tokens.weight" ? 0.3 : 0.8 / std::sqrt(static_cast<double>(shape[1]));
    parameters_[name] = (numbers * size + (shape.size() == 1 ? 1 : 0)).to(at::kDouble).requires_grad_();
  }
}

at::Tensor LatentReference::linear(const at::Tensor& x, const std::string& name) const {
  return x.mm(parameters_.at(name + ".weight").t());
}

at::Tensor LatentReference::norm(const at::Tensor& x, const std::string& name, double epsilon) const {
  return x * (x.pow(2).mean(-1, true) + epsilon).rsqrt() * parameters_.at(name + ".weight");
}

at::Tensor LatentReference::attention(const at::Tensor& x, const std::string& name) const {
  const int64_t s = x.size(0);
  const at::Tensor q_flat =
      config_.q_rank > 0 ? linear(norm(linear(x, name + "q_a_proj"), name + "q_a_layernorm", 1e-6), name + "q_b_proj")
                         : linear(x, name + "q_proj");
  const at::Tensor q = q_flat.unflatten(1, {kHeads, kNope + kRotary}), down = linear(x, name + "kv_a_proj_with_mqa");
  const at::Tensor kv = linear(norm(down.narrow(1, 0, kKvRank), name + "kv_a_layernorm", 1e-6), name + "kv_b_proj")
                            .unflatten(1, {kHeads, kNope + kValue});
  const at::Tensor turned = rotate(q.narrow(2, kNope, kRotary));
  const at::Tensor shared = rotate(down.narrow(1, kKvRank, kRotary).unsqueeze(1)).select(1, 0);
  const double scale = std::pow(magnitude(kMscaleAll), 2) / std::sqrt(static_cast<double>(kNope + kRotary));
  std::vector<at::Tensor> heads;
  for (int64_t n = 0; n < kHeads; ++n) {
    const at::Tensor mine = kv.select(1, n);
    const at::Tensor scores =
        q.select(1, n).narrow(1, 0, kNope).mm(mine.narrow(1, 0, kNope).t()) + turned.select(1, n).mm(shared.t());
    const at::Tensor later = at::ones({s, s}, at::kBool).triu(1);
    const at::Tensor p = at::softmax((scores * scale).masked_fill(later, -std::numeric_limits<double>::infinity()), -1);
    heads.push_back(p.mm(mine.narrow(1, kNope, kValue)));
  }
  return linear(at::cat(heads, 1), name + "o_proj");
}

at::Tensor LatentReference::layer(const at::Tensor& x, const std::string& name) const {
  const at::Tensor middle = x + attention(norm(x, name + "input_layernorm"), name + "self_attn.");
  const at::Tensor y = norm(middle, name + "post_attention_layernorm"), gate = linear(y, name + "mlp.gate_proj");
  return middle + linear(gate * gate.sigmoid() * linear(y, name + "mlp.up_proj"), name + "mlp.down_proj");
}

at::Tensor LatentReference::loss(const at::Tensor& hidden, const at::Tensor& ids, int64_t ahead) const {
  const at::Tensor logits = linear(hidden, config_.tied ? "model.embed_tokens" : "lm_head");
  const int64_t count = ids.size(0) - ahead;  // tokens that have something so far ahead
  if (count <= 0) return logits.sum() * 0;
  const at::Tensor log_p = at::log_softmax(logits.narrow(0, 0, count), -1);
  return -log_p.gather(1, ids.narrow(0, ahead, count).unsqueeze(1)).sum();
}

LatentReference::Losses LatentReference::losses(const at::Tensor& ids) const {
  const at::Tensor& embedding = parameters_.at("model.embed_tokens.weight");
  at::Tensor x = embedding.index_select(0, ids);
  for (int64_t i = 0; i < config_.layers; ++i) x = layer(x, layer_name(i));
  x = norm(x, "model.norm");
  Losses result{loss(x, ids, 1), {}};
  for (int64_t depth = 1; depth <= config_.mtp; ++depth) {
    const std::string name = layer_name(config_.layers + depth - 1);
    // The ids `depth` places ahead; any id after the end: nothing is predicted from there.
    const int64_t left = std::max<int64_t>(0, ids.size(0) - depth);
    const at::Tensor ahead =
        at::cat({ids.narrow(0, ids.size(0) - left, left), at::zeros({ids.size(0) - left}, at::kLong)});
    const at::Tensor both =
        at::cat({norm(embedding.index_select(0, ahead), name + "enorm"), norm(x, name + "hnorm")}, 1);
    x = norm(layer(linear(both, name + "eh_proj"), name), name + "shared_head.norm");
    result.mtp.push_back(loss(x, ids, depth + 1));
  }
  return result;
}

void LatentReference::save(const std::filesystem::path& folder, bool with_mtp) const {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config_.to_json().dump(2) << '\n';
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, value] : parameters_) tensors[name] = value.detach().to(at::kFloat);
  for (int64_t i = config_.layers; i < config_.layers + config_.mtp; ++i) {
    if (with_mtp) {
      tensors[layer_name(i) + "embed_tokens.weight"] = tensors.at("model.embed_tokens.weight");
      tensors[layer_name(i) + "shared_head.head.weight"] =
          tensors.at(config_.tied ? "model.embed_tokens.weight" : "lm_head.weight");
    } else {
      std::erase_if(tensors, [&](const auto& each) { return each.first.starts_with(layer_name(i)); });
    }
  }
  std::vector<hf::WeightSpec> specs;
  for (const auto& [name, value] : tensors) specs.push_back({name, hf::Dtype::kF32, value.sizes().vec()});
  hf::WeightWriter writer(folder, specs);
  writer.create_files();
  for (const auto& [name, value] : tensors) writer.write(name, value);
  writer.sync();
  writer.write_index();
}

}  // namespace megalith::testing
