#include "tests/support/reference_model.h"

#include <ATen/ATen.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "tests/support/reference_rope.h"

namespace megalith::testing {

namespace {

using Parameters = std::map<std::string, at::Tensor>;

// One forward pass.
class Pass {
 public:
  Pass(const ReferenceConfig& config, const Parameters& parameters) : config_(config), parameters_(parameters) {}

  ReferenceOutput run(const at::Tensor& ids, const ReferenceInput& input) {
    const at::Tensor positions =
        input.position_ids.defined() ? input.position_ids : counted(ids.sizes(), input.cu_seqlens);
    ReferenceOutput out;
    at::Tensor x = weight(embedding_name()).index({ids});
    if (config_.is_gpt2()) {
      x = x + weight("transformer.wpe.weight").index({positions});
    } else {
      angles_ = reference_angles(config_, positions);
    }
    const at::Tensor sequence = sequence_numbers(ids.size(1), input.cu_seqlens);
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      out.hidden_states.push_back(x);
      x = config_.is_gpt2() ? gpt2_layer(x, layer, sequence) : llama_layer(x, layer, sequence);
    }
    x = config_.is_gpt2() ? layer_norm(x, "transformer.ln_f") : rms_norm(x, "model.norm");
    out.hidden_states.push_back(x);
    out.logits = at::matmul(x, weight(config_.tied ? embedding_name() : "lm_head.weight").t());
    return out;
  }

 private:
  const at::Tensor& weight(const std::string& name) const { return parameters_.at(name); }
  std::string embedding_name() const {
    return config_.is_gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight";
  }
  static at::ScalarType acc(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

  static at::Tensor counted(at::IntArrayRef shape, const std::vector<int64_t>& cumulative) {
    at::Tensor positions = at::arange(shape[1], at::kLong);
    for (size_t i = 1; i + 1 < cumulative.size(); ++i)
      positions.slice(0, cumulative[i], cumulative[i + 1]).sub_(cumulative[i]);
    return positions.unsqueeze(0).expand(shape);
  }

  // [s]: which sequence of the row a token belongs to.
  static at::Tensor sequence_numbers(int64_t s, const std::vector<int64_t>& cumulative) {
    at::Tensor numbers = at::zeros({s}, at::kLong);
    for (size_t i = 1; i + 1 < cumulative.size(); ++i) numbers.slice(0, cumulative[i], s).add_(1);
    return numbers;
  }

  // y = x Wᵀ + b; gpt2 stores Wᵀ.
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const at::Tensor& w = weight(name + ".weight");
    const at::Tensor y = at::matmul(x, config_.is_gpt2() ? w : w.t());
    const auto bias = parameters_.find(name + ".bias");
    return bias == parameters_.end() ? y : y + bias->second;
  }

  at::Tensor rms_norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor wide = x.to(acc(x));
    const at::Tensor size = (wide.pow(2).mean(-1, /*keepdim=*/true) + config_.norm_epsilon).rsqrt();
    return weight(name + ".weight") * (wide * size).to(x.scalar_type());
  }

  at::Tensor layer_norm(const at::Tensor& x, const std::string& name) const {
    return at::layer_norm(x, {x.size(-1)}, weight(name + ".weight"), weight(name + ".bias"), config_.norm_epsilon);
  }

  at::Tensor activate(const at::Tensor& x) const {
    const std::string& kind = config_.activation;
    if (kind == "silu") return x * x.sigmoid();
    if (kind == "gelu") return at::gelu(x);
    if (kind == "gelu_new" || kind == "gelu_pytorch_tanh") return at::gelu(x, "tanh");
    if (kind == "quick_gelu") return x * (1.702 * x).sigmoid();
    check<ConfigError>(kind == "relu", "the reference model has no activation {}", kind);
    return at::relu(x);
  }

  // [b, s, n d] -> [b, n, s, d]
  at::Tensor split_heads(const at::Tensor& x, int64_t heads) const {
    return x.view({x.size(0), x.size(1), heads, config_.head_dim}).transpose(1, 2);
  }

  // q [b, n, s, d], k, v [b, g, s, d] -> [b, s, n d]
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t layer,
                    const at::Tensor& sequence) const {
    const int64_t group = config_.num_heads / config_.num_kv_heads;
    double scale = config_.scale_attention ? 1 / std::sqrt(static_cast<double>(config_.head_dim)) : 1;
    if (config_.scale_by_inverse_layer) scale /= static_cast<double>(layer + 1);
    at::Tensor scores = at::matmul(q, k.repeat_interleave(group, 1).transpose(2, 3)) * scale;  // [b, n, s, s]
    const at::Tensor place = at::arange(q.size(2), at::kLong);
    const at::Tensor distance = place.unsqueeze(1) - place.unsqueeze(0);  // query - key
    at::Tensor hidden = distance.lt(0).logical_or(sequence.unsqueeze(1).ne(sequence.unsqueeze(0)));
    if (!config_.windows.empty() && config_.windows.at(static_cast<size_t>(layer)) > 0)
      hidden = hidden.logical_or(distance.ge(config_.windows.at(static_cast<size_t>(layer))));
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    const at::Tensor weights = at::softmax(scores, -1, acc(scores)).to(q.scalar_type());
    return at::matmul(weights, v.repeat_interleave(group, 1)).transpose(1, 2).reshape({q.size(0), q.size(2), -1});
  }

  at::Tensor llama_layer(const at::Tensor& x, int64_t layer, const at::Tensor& sequence) const {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const at::Tensor y = rms_norm(x, name + "input_layernorm");
    at::Tensor q = split_heads(linear(y, name + "self_attn.q_proj"), config_.num_heads);
    at::Tensor k = split_heads(linear(y, name + "self_attn.k_proj"), config_.num_kv_heads);
    const at::Tensor v = split_heads(linear(y, name + "self_attn.v_proj"), config_.num_kv_heads);
    if (config_.qk_norm) {
      q = rms_norm(q, name + "self_attn.q_norm");
      k = rms_norm(k, name + "self_attn.k_norm");
    }
    q = reference_rotate(q, angles_);
    k = reference_rotate(k, angles_);
    const at::Tensor middle = x + linear(attend(q, k, v, layer, sequence), name + "self_attn.o_proj");
    const at::Tensor z = rms_norm(middle, name + "post_attention_layernorm");
    const at::Tensor inner = activate(linear(z, name + "mlp.gate_proj")) * linear(z, name + "mlp.up_proj");
    return middle + linear(inner, name + "mlp.down_proj");
  }

  at::Tensor gpt2_layer(const at::Tensor& x, int64_t layer, const at::Tensor& sequence) const {
    const std::string name = "transformer.h." + std::to_string(layer) + ".";
    const auto qkv = linear(layer_norm(x, name + "ln_1"), name + "attn.c_attn").chunk(3, -1);
    const int64_t n = config_.num_heads;
    const at::Tensor mixed =
        attend(split_heads(qkv[0], n), split_heads(qkv[1], n), split_heads(qkv[2], n), layer, sequence);
    const at::Tensor middle = x + linear(mixed, name + "attn.c_proj");
    const at::Tensor inner = activate(linear(layer_norm(middle, name + "ln_2"), name + "mlp.c_fc"));
    return middle + linear(inner, name + "mlp.c_proj");
  }

  const ReferenceConfig& config_;
  const Parameters& parameters_;
  std::pair<at::Tensor, at::Tensor> angles_;  // cos, sin; of models with rotary embedding
};

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

void add_gpt2_layer(Shapes& list, const ReferenceConfig& c, const std::string& name) {
  const int64_t h = c.hidden_size, f = c.intermediate_size;
  for (const char* norm : {"ln_1", "ln_2"})
    for (const char* part : {".weight", ".bias"}) list.push_back({name + norm + part, {h}});
  const auto conv = [&](const std::string& what, int64_t in, int64_t out) {
    list.push_back({name + what + ".weight", {in, out}});
    list.push_back({name + what + ".bias", {out}});
  };
  conv("attn.c_attn", h, 3 * h);
  conv("attn.c_proj", h, h);
  conv("mlp.c_fc", h, f);
  conv("mlp.c_proj", f, h);
}

void add_llama_layer(Shapes& list, const ReferenceConfig& c, const std::string& name) {
  const int64_t h = c.hidden_size, f = c.intermediate_size;
  const int64_t q = c.num_heads * c.head_dim, kv = c.num_kv_heads * c.head_dim;
  const auto linear = [&](const std::string& what, int64_t in, int64_t out, bool bias) {
    list.push_back({name + what + ".weight", {out, in}});
    if (bias) list.push_back({name + what + ".bias", {out}});
  };
  list.push_back({name + "input_layernorm.weight", {h}});
  linear("self_attn.q_proj", h, q, c.qkv_bias);
  linear("self_attn.k_proj", h, kv, c.qkv_bias);
  linear("self_attn.v_proj", h, kv, c.qkv_bias);
  linear("self_attn.o_proj", q, h, c.out_bias);
  if (c.qk_norm)
    for (const char* norm : {"q_norm", "k_norm"})
      list.push_back({name + "self_attn." + norm + ".weight", {c.head_dim}});
  list.push_back({name + "post_attention_layernorm.weight", {h}});
  linear("mlp.gate_proj", h, f, c.mlp_bias);
  linear("mlp.up_proj", h, f, c.mlp_bias);
  linear("mlp.down_proj", f, h, c.mlp_bias);
}

at::Tensor random_weight(const std::string& name, const std::vector<int64_t>& shape, const ReferenceConfig& config,
                         at::Generator& generator) {
  const at::Tensor numbers = at::randn(shape, generator, at::kFloat);
  const bool embedding =
      name.ends_with("wte.weight") || name.ends_with("wpe.weight") || name.ends_with("embed_tokens.weight");
  if (embedding) return numbers;
  if (shape.size() == 1) return name.ends_with(".bias") ? numbers * 0.3 : 1 + numbers * 0.3;
  const int64_t in = config.is_gpt2() && name != "lm_head.weight" ? shape[0] : shape[1];
  return numbers * (1.5 / std::sqrt(static_cast<double>(in)));
}

// Labels as they are to be predicted: labels[t+1] at t, -100 at the end of each sequence.
at::Tensor shifted(const at::Tensor& labels, const std::vector<int64_t>& cumulative) {
  at::Tensor targets = at::full_like(labels, -100);
  targets.slice(1, 0, -1).copy_(labels.slice(1, 1));
  for (size_t i = 1; i < cumulative.size(); ++i) targets.select(1, cumulative[i] - 1).fill_(-100);
  return targets;
}

}  // namespace

Shapes reference_tensors(const ReferenceConfig& config) {
  Shapes list;
  const int64_t h = config.hidden_size, v = config.vocab_size;
  list.push_back({config.is_gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight", {v, h}});
  if (config.is_gpt2()) list.push_back({"transformer.wpe.weight", {config.max_positions, h}});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    if (config.is_gpt2()) add_gpt2_layer(list, config, "transformer.h." + std::to_string(i) + ".");
    if (!config.is_gpt2()) add_llama_layer(list, config, "model.layers." + std::to_string(i) + ".");
  }
  list.push_back({config.is_gpt2() ? "transformer.ln_f.weight" : "model.norm.weight", {h}});
  if (config.is_gpt2()) list.push_back({"transformer.ln_f.bias", {h}});
  if (!config.tied) list.push_back({"lm_head.weight", {v, h}});
  return list;
}

ReferenceModel ReferenceModel::from_folder(const std::filesystem::path& folder, const std::string& config_name) {
  std::ifstream text(folder / config_name);
  check<DataError>(text.good(), "{} cannot be read", (folder / config_name).string());
  const auto config = ReferenceConfig::from_json(nlohmann::json::parse(text));
  const hf::WeightFiles files(folder);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& [name, shape] : reference_tensors(config)) {
    const std::string prefix = "transformer.";
    const bool bare = !files.contains(name) && name.starts_with(prefix);  // some gpt2 files lack it
    const at::Tensor tensor = files.tensor(bare ? name.substr(prefix.size()) : name);
    check<DataError>(tensor.sizes() == at::IntArrayRef(shape), "{} in {} has another shape than its config.json says",
                     name, folder.string());
    parameters[name] = tensor.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  }
  return {config, std::move(parameters)};
}

ReferenceModel ReferenceModel::random(const ReferenceConfig& config, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& [name, shape] : reference_tensors(config))
    parameters[name] = random_weight(name, shape, config, generator).requires_grad_();
  return {config, std::move(parameters)};
}

const at::Tensor& ReferenceModel::parameter(const std::string& name) const {
  const auto found = parameters_.find(name);
  check(found != parameters_.end(), "the reference model has no tensor {}", name);
  return found->second;
}

at::Tensor ReferenceModel::grad(const std::string& name) const {
  const at::Tensor& value = parameter(name);
  return value.grad().defined() ? value.grad() : at::zeros_like(value);
}

void ReferenceModel::zero_grad() const {
  for (const auto& [name, value] : parameters_) value.mutable_grad() = at::Tensor();
}

double ReferenceModel::grad_norm() const {
  double sum = 0;
  for (const auto& [name, value] : parameters_) sum += grad(name).to(at::kDouble).pow(2).sum().item<double>();
  return std::sqrt(sum);
}

ReferenceModel ReferenceModel::to(at::ScalarType dtype) const {
  std::map<std::string, at::Tensor> converted;
  for (const auto& [name, value] : parameters_)
    converted[name] = value.detach().to(dtype, false, true).requires_grad_();
  return {config_, std::move(converted)};
}

ReferenceOutput ReferenceModel::forward(const at::Tensor& input_ids, const ReferenceInput& input) const {
  return Pass(config_, parameters_).run(input_ids, input);
}

void ReferenceModel::save(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config_.to_json().dump(2) << '\n';
  std::vector<hf::WeightSpec> specs;
  for (const auto& [name, value] : parameters_) specs.push_back({name, hf::Dtype::kF32, value.sizes().vec()});
  hf::WeightWriter writer(folder, specs);
  writer.create_files();
  for (const auto& [name, value] : parameters_) writer.write(name, value.detach());
  writer.sync();
  writer.write_index();
}

at::Tensor reference_token_losses(const at::Tensor& logits, const at::Tensor& labels,
                                  const std::vector<int64_t>& cu_seqlens) {
  const at::Tensor targets = shifted(labels, cu_seqlens);
  const at::ScalarType acc = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor log_p = at::log_softmax(logits, -1, acc);  // [b, s, v]
  const at::Tensor nll = -log_p.gather(2, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  return nll.masked_fill(targets.eq(-100), 0);
}

int64_t reference_label_count(const at::Tensor& labels, const std::vector<int64_t>& cu_seqlens) {
  return shifted(labels, cu_seqlens).ne(-100).sum().item<int64_t>();
}

}  // namespace megalith::testing
