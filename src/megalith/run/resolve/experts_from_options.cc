// Megatron describes a model with experts by independent options; each family spells them with keys of its own.
#include "megalith/run/resolve/family_json_internal.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/run/resolve/layer_list_internal.h"

namespace megalith::run {

namespace {

using config::TrainingArguments;

// Returns which layers have experts: for "2" every second layer, beginning with the first, or as a list says.
std::vector<bool> expert_layers(const TrainingArguments& args) {
  const std::string text = args.moe.layer_freq.value_or("1");
  const int64_t layers = *args.shape.num_layers;
  const auto step = layer_step("moe_layer_freq", text);
  if (!step) return parse_layer_list("moe_layer_freq", text, layers);
  std::vector<bool> all;
  for (int64_t layer = 0; layer < layers; ++layer) all.push_back(layer % *step == 0);
  return all;
}

bool sigmoid(const TrainingArguments& args) { return args.router.score_function == config::ScoreFunction::kSigmoid; }

// Width of one expert: moe_ffn_hidden_size, or else that of a dense layer.
int64_t width_of(const TrainingArguments& args) {
  return args.moe.ffn_hidden_size.value_or(args.shape.ffn_hidden_size.value_or(0));
}

int64_t shared_width_of(const TrainingArguments& args) { return args.moe.shared_expert_intermediate_size.value_or(0); }

// Megatron divides sigmoid scores by their sum if there are several, and takes a softmax either over the chosen experts
// or, with moe_router_pre_softmax, over all of them.
bool normalizes(const TrainingArguments& args) {
  return sigmoid(args) ? args.router.topk.value_or(2) > 1 : !on(args.router.pre_softmax);
}

io::Json dense_layers(const TrainingArguments& args) {
  io::Json dense = io::Json::array();
  const std::vector<bool> layers = expert_layers(args);
  for (size_t layer = 0; layer < layers.size(); ++layer)
    if (!layers[layer]) dense.push_back(layer);
  return dense;
}

// The keys that deepseek_v3 and glm4_moe share: dense layers come first, shared experts are as wide as the others.
void add_deepseek_experts(io::Json& json, const TrainingArguments& args) {
  json["n_routed_experts"] = *args.moe.num_experts;
  json["n_shared_experts"] = shared_width_of(args) / width_of(args);
  json["first_k_dense_replace"] = std::ranges::count(expert_layers(args), false);
}

void add_qwen_experts(io::Json& json, const TrainingArguments& args) {
  json["num_experts"] = *args.moe.num_experts;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense_layers(args);
}

void add_own_experts(io::Json& json, const TrainingArguments& args) {
  json["num_experts"] = *args.moe.num_experts;
  json["mlp_only_layers"] = dense_layers(args);
  json["scoring_func"] = sigmoid(args) ? "sigmoid" : "softmax";
  json["shared_expert_intermediate_size"] = shared_width_of(args);
  json["shared_expert_gate"] = on(args.moe.shared_expert_gate);
}

void add_router(io::Json& json, const config::RouterConfig& router) {
  json["routed_scaling_factor"] = router.topk_scaling_factor.value_or(1);
  json["n_group"] = router.num_groups.value_or(1);
  json["topk_group"] = router.group_topk.value_or(router.num_groups.value_or(1));
}

}  // namespace

const char* nearest_expert_family(const TrainingArguments& args) {
  if (sigmoid(args)) return "glm4_moe";
  if (on(args.layer.qk_layernorm)) return "qwen3_moe";
  return shared_width_of(args) > 0 && on(args.moe.shared_expert_gate) ? "qwen2_moe" : "mixtral";
}

std::vector<std::string> expert_problems(const TrainingArguments& args) {
  std::vector<std::string> found;
  const std::vector<bool> layers = expert_layers(args);
  if (std::ranges::find(layers, true) == layers.end())
    found.push_back(
        fmt::format("moe_layer_freq leaves no layer for the {} experts of num_experts", *args.moe.num_experts));
  if (on(args.layer.add_bias_linear))
    found.push_back(
        fmt::format("num_experts {}: experts have no biases; set disable_bias_linear (add_qkv_bias keeps"
                    " those of queries, keys and values)",
                    *args.moe.num_experts));
  if (on(args.moe.shared_expert_gate) && shared_width_of(args) == 0)
    found.emplace_back("moe_shared_expert_gate needs a shared expert: give moe_shared_expert_intermediate_size");
  return found;
}

void add_experts(io::Json& json, const TrainingArguments& args) {
  const auto family = json["model_type"].get<std::string>();
  json["num_experts_per_tok"] = args.router.topk.value_or(2);
  if (family == "mixtral") {
    json["num_local_experts"] = *args.moe.num_experts;
    json["intermediate_size"] = width_of(args);
    return;
  }
  json["moe_intermediate_size"] = width_of(args);
  // Softmax before the choice leaves weights that do not add up to 1, exactly when they are not normalized after it.
  json["norm_topk_prob"] = normalizes(args);
  if (family == "deepseek_v3" || family == "glm4_moe") {
    add_deepseek_experts(json, args);
    add_router(json, args.router);
  } else if (family == "megatron_gpt") {
    add_own_experts(json, args);
    add_router(json, args.router);
  } else {
    add_qwen_experts(json, args);
    if (family == "qwen2_moe") json["shared_expert_intermediate_size"] = shared_width_of(args);
  }
}

}  // namespace megalith::run
