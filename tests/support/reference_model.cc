#include "tests/support/reference_model.h"

#include <ATen/ATen.h>

#include <cmath>
#include <fstream>

#include "megalith/base/error.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "tests/support/reference_parts.h"
#include "tests/support/reference_rope.h"

namespace megalith::testing {

namespace {

using Parameters = std::map<std::string, at::Tensor>;

// One forward pass.
class Pass {
 public:
  Pass(const ReferenceConfig& config, const Parameters& parameters) : config_(config), parts_(config, parameters) {}

  ReferenceOutput run(const at::Tensor& ids, const ReferenceInput& input) {
    const at::Tensor positions =
        input.position_ids.defined() ? input.position_ids : counted(ids.sizes(), input.cu_seqlens);
    ReferenceOutput out;
    at::Tensor x = parts_.weight(embedding_name()).index({ids});
    places_.sequence = sequence_numbers(ids.size(1), input.cu_seqlens);
    if (config_.is_gpt2() || config_.learned_positions) {
      const char* name = config_.is_gpt2() ? "transformer.wpe.weight" : "model.embed_positions.weight";
      x = x + parts_.weight(name).index({positions});
    } else {
      places_.angles = reference_angles(config_, positions);
    }
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      out.hidden_states.push_back(x);
      x = config_.is_gpt2() ? gpt2_layer(x, layer) : llama_layer(x, layer, out.router_margin);
    }
    x = config_.is_gpt2() ? parts_.layer_norm(x, "transformer.ln_f") : parts_.norm(x, "model.norm");
    out.hidden_states.push_back(x);
    out.logits = head(x);
    check(config_.mtp == 0 || input.cu_seqlens.empty(), "the reference predicts further tokens of whole rows only");
    at::Tensor ahead = ids;
    for (int64_t layer = config_.num_layers; layer < config_.num_layers + config_.mtp; ++layer) {
      // The ids one more place ahead; any id past the end, from where nothing is predicted.
      ahead = at::constant_pad_nd(ahead.slice(1, 1), {0, 1});
      x = mtp_layer(x, ahead, layer, out.router_margin);
      out.mtp_logits.push_back(head(x));
    }
    return out;
  }

 private:
  at::Tensor head(const at::Tensor& x) const {
    return at::matmul(x, parts_.weight(config_.tied ? embedding_name() : "lm_head.weight").t());
  }

  // DeepSeek-V3's: [norm(embedding of the token ahead) | norm(hidden)], a projection, a layer, a norm.
  at::Tensor mtp_layer(const at::Tensor& x, const at::Tensor& ahead, int64_t layer, double& margin) const {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const at::Tensor embedded = parts_.norm(parts_.weight(embedding_name()).index({ahead}), name + "enorm");
    const at::Tensor both = at::cat({embedded, parts_.norm(x, name + "hnorm")}, -1);
    return parts_.norm(llama_layer(parts_.linear(both, name + "eh_proj"), layer, margin), name + "shared_head.norm");
  }

  std::string embedding_name() const {
    return config_.is_gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight";
  }

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

  at::Tensor llama_layer(const at::Tensor& x, int64_t layer, double& margin) const {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const at::Tensor y = parts_.norm(x, name + "input_layernorm");
    const auto mix = config_.has_delta_net(layer) ? reference_delta_net
                     : config_.latent             ? reference_latent_attention
                                                  : reference_attention;
    const at::Tensor middle = x + mix(parts_, y, layer, places_);
    const at::Tensor z = parts_.norm(middle, name + "post_attention_layernorm");
    return middle +
           (config_.has_experts(layer) ? reference_experts(parts_, z, layer, margin) : parts_.mlp(z, name + "mlp."));
  }

  at::Tensor gpt2_layer(const at::Tensor& x, int64_t layer) const {
    const std::string name = "transformer.h." + std::to_string(layer) + ".";
    const auto qkv = parts_.linear(parts_.layer_norm(x, name + "ln_1"), name + "attn.c_attn").chunk(3, -1);
    double scale = config_.scale_attention ? 1 / std::sqrt(static_cast<double>(config_.head_dim)) : 1;
    if (config_.scale_by_inverse_layer) scale /= static_cast<double>(layer + 1);
    const auto heads = [&](const at::Tensor& each) {  // [b, s, n d] -> [b, n, s, d]
      return each.view({each.size(0), each.size(1), config_.num_heads, config_.head_dim}).transpose(1, 2);
    };
    const at::Tensor mixed =
        parts_.attend(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), scale, /*window=*/0, places_.sequence);
    const at::Tensor middle = x + parts_.linear(mixed, name + "attn.c_proj");
    const at::Tensor inner =
        parts_.activate(parts_.linear(parts_.layer_norm(middle, name + "ln_2"), name + "mlp.c_fc"));
    return middle + parts_.linear(inner, name + "mlp.c_proj");
  }

  const ReferenceConfig& config_;
  const ReferenceParts parts_;
  ReferencePlaces places_;
};

// Labels as they are to be predicted: labels[t+1] at t, -100 at the end of each sequence.
at::Tensor shifted(const at::Tensor& labels, const std::vector<int64_t>& cumulative) {
  at::Tensor targets = at::full_like(labels, -100);
  targets.slice(1, 0, -1).copy_(labels.slice(1, 1));
  for (size_t i = 1; i < cumulative.size(); ++i) targets.select(1, cumulative[i] - 1).fill_(-100);
  return targets;
}

}  // namespace

ReferenceModel ReferenceModel::from_folder(const std::filesystem::path& folder, const std::string& config_name) {
  std::ifstream text(folder / config_name);
  check<DataError>(text.good(), "{} cannot be read", (folder / config_name).string());
  auto config = ReferenceConfig::from_json(nlohmann::json::parse(text));
  const hf::WeightFiles files(folder);
  // transformers writes the number of prediction layers and not their weights.
  if (!files.contains("model.layers." + std::to_string(config.num_layers) + ".eh_proj.weight")) config.mtp = 0;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, shape] : reference_tensors(config)) {
    const std::string prefix = "transformer.";
    const bool bare = !files.contains(name) && name.starts_with(prefix);  // some gpt2 files lack it
    const at::Tensor tensor = files.tensor(bare ? name.substr(prefix.size()) : name);
    check<DataError>(tensor.sizes() == at::IntArrayRef(shape), "{} in {} has another shape than its config.json says",
                     name, folder.string());
    tensors[name] = tensor.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  return {config, tensors};
}

ReferenceModel ReferenceModel::random(const ReferenceConfig& config, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, shape] : reference_tensors(config))
    tensors[name] = reference_random_weight(name, shape, config, generator);
  return {config, tensors};
}

ReferenceModel::ReferenceModel(ReferenceConfig config, const std::map<std::string, at::Tensor>& tensors)
    : config_(std::move(config)), tensors_(tensors) {
  for (const auto& [name, tensor] : tensors_)
    if (!is_reference_buffer(name)) parameters_[name] = at::Tensor(tensor).requires_grad_();
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
  for (const auto& [name, value] : tensors_) converted[name] = value.detach().to(dtype, false, true);
  return {config_, converted};
}

ReferenceOutput ReferenceModel::forward(const at::Tensor& input_ids, const ReferenceInput& input) const {
  return Pass(config_, tensors_).run(input_ids, input);
}

void ReferenceModel::save(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config_.to_json().dump(2) << '\n';
  std::vector<hf::WeightSpec> specs;
  for (const auto& [name, value] : tensors_) specs.push_back({name, hf::Dtype::kF32, value.sizes().vec()});
  hf::WeightWriter writer(folder, specs);
  writer.create_files();
  for (const auto& [name, value] : tensors_) writer.write(name, value.detach());
  writer.sync();
  writer.write_index();
}

at::Tensor reference_token_losses(const at::Tensor& logits, const at::Tensor& labels,
                                  const std::vector<int64_t>& cu_seqlens, double smoothing) {
  const at::Tensor targets = shifted(labels, cu_seqlens);
  const at::ScalarType acc = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor log_p = at::log_softmax(logits, -1, acc);  // [b, s, v]
  const at::Tensor nll = -log_p.gather(2, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  const at::Tensor losses = smoothing == 0 ? nll : (1 - smoothing) * nll - smoothing * log_p.mean(-1);
  return losses.masked_fill(targets.eq(-100), 0);
}

int64_t reference_label_count(const at::Tensor& labels, const std::vector<int64_t>& cu_seqlens) {
  return shifted(labels, cu_seqlens).ne(-100).sum().item<int64_t>();
}

}  // namespace megalith::testing
