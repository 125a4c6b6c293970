// Megatron describes a model with experts by independent options; a Hugging Face family is a fixed combination. The
// family is chosen by the options that only one family has, in this order: sigmoid scores (glm4_moe), norms on queries
// and keys (qwen3_moe), shared experts or qkv biases (qwen2_moe), otherwise mixtral. Every option that does not fit the
// chosen family is then reported with the change that would make it fit.
#include "megalith/run/resolve/experts_from_options_internal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>

#include "megalith/base/error.h"

namespace megalith::run {

namespace {

using config::TrainingArguments;

// Parses Python's list arithmetic as far as the option uses it: [1,0], (…), a+b, a*n. A recursive-descent parser with
// limits on depth and length, since the text comes from the user.
class LayerList {
 public:
  explicit LayerList(const std::string& text) : text_(text) { std::erase(text_, ' '); }

  std::vector<bool> parse() {
    std::vector<bool> all = sum();
    need(at_ == text_.size());
    return all;
  }

 private:
  // One message for every syntax error: the text is short enough to see the place.
  void need(bool ok) const {
    check<ConfigError>(ok, "moe_layer_freq is \"{}\"; give a number, or a list such as ([1]*3+[0]*2)", text_);
  }
  // Consumes `c` if it comes next.
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Repeats beyond 100 000 layers are mistakes, and the limit bounds the work of a hostile text.
  int64_t number() {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    need(error == std::errc() && value >= 0 && value <= 100'000);
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  // sum = product { '+' product }
  std::vector<bool> sum() {
    std::vector<bool> all = product();
    while (take('+')) {
      const std::vector<bool> more = product();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
  // product = ( '(' sum ')' | '[' number { ',' number } ']' ) [ '*' number ]
  std::vector<bool> product() {
    std::vector<bool> once;
    if (take('(')) {
      need(++depth_ < 100);
      once = sum();
      need(take(')'));
      --depth_;
    } else {
      need(take('['));
      do once.push_back(number() != 0);
      while (take(','));
      need(take(']'));
    }
    if (!take('*')) return once;
    std::vector<bool> all;
    for (int64_t n = number(); n > 0; --n) {
      all.insert(all.end(), once.begin(), once.end());
      need(all.size() <= 1'000'000);
    }
    return all;
  }

  std::string text_;
  size_t at_ = 0;
  int depth_ = 0;
};

// Returns for each layer whether it has experts.
std::vector<bool> expert_layers(const TrainingArguments& args) {
  return parse_layer_freq(args.moe.layer_freq.value_or("1"), *args.shape.num_layers);
}

bool sigmoid(const TrainingArguments& args) { return args.router.score_function == config::ScoreFunction::kSigmoid; }

// The table of the head of this file.
const char* family_of(const TrainingArguments& args) {
  if (sigmoid(args)) return "glm4_moe";
  if (on(args.layer.qk_layernorm)) return "qwen3_moe";
  return args.moe.shared_expert_intermediate_size || on(args.layer.add_qkv_bias) ? "qwen2_moe" : "mixtral";
}

// Width of one expert: moe_ffn_hidden_size, or else that of a dense layer.
int64_t width_of(const TrainingArguments& args) {
  return args.moe.ffn_hidden_size.value_or(args.shape.ffn_hidden_size.value_or(0));
}

}  // namespace

std::vector<bool> parse_layer_freq(const std::string& text, int64_t layers) {
  std::vector<bool> all;
  // "1" -> all layers, "2" -> layers 0, 2, 4, …; "([0]*1+[1]*3)" -> {0, 1, 1, 1}. Seven digits cannot be a step.
  if (!text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) {
    const int64_t step = text.size() < 7 ? std::stoll(text) : 0;
    check<ConfigError>(step > 0, "moe_layer_freq is {}; it must be 1 or more: every how many layers have experts",
                       text);
    for (int64_t layer = 0; layer < layers; ++layer) all.push_back(layer % step == 0);
    return all;
  }
  all = LayerList(text).parse();
  check<ConfigError>(static_cast<int64_t>(all.size()) == layers,
                     "moe_layer_freq \"{}\" describes {} layers, but num_layers is {}", text, all.size(), layers);
  return all;
}

std::vector<std::string> expert_problems(const TrainingArguments& args) {
  std::vector<std::string> problems;
  const auto need = [&problems](bool ok, std::string_view text) {
    if (!ok) problems.emplace_back(text);
  };
  const std::string family = family_of(args);
  const std::vector<bool> layers = expert_layers(args);
  const auto shared = args.moe.shared_expert_intermediate_size;
  need(std::ranges::find(layers, true) != layers.end(),
       fmt::format("moe_layer_freq leaves no layer for the {} experts of num_experts", *args.moe.num_experts));
  need(sigmoid(args) || (!args.router.num_groups && !args.router.topk_scaling_factor),
       "moe_router_num_groups and moe_router_topk_scaling_factor go with moe_router_score_function sigmoid: no other"
       " family has them");
  if (family == "mixtral") {
    need(std::ranges::find(layers, false) == layers.end(),
         "experts without qk_layernorm, add_qkv_bias and shared experts make a mixtral model, which has them in every"
         " layer: leave out moe_layer_freq");
    need(!on(args.router.pre_softmax),
         "a mixtral model takes the softmax of the chosen experts: leave out"
         " moe_router_pre_softmax, or add qk_layernorm (qwen3_moe)");
  } else if (family == "qwen2_moe") {
    need(shared && on(args.moe.shared_expert_gate) && on(args.layer.add_qkv_bias),
         "a qwen2_moe model has biases on queries, keys and values and a gated shared expert: give add_qkv_bias,"
         " moe_shared_expert_intermediate_size and moe_shared_expert_gate together");
  } else if (family == "qwen3_moe") {
    need(!shared,
         "qk_layernorm with softmax makes a qwen3_moe model, which has no shared experts: leave out"
         " moe_shared_expert_intermediate_size");
  } else {
    need(!on(args.moe.shared_expert_gate),
         "sigmoid scores make a glm4_moe model, whose shared experts have no gate:"
         " leave out moe_shared_expert_gate");
    need(shared && *shared % width_of(args) == 0,
         fmt::format("sigmoid scores make a glm4_moe model, whose shared experts are as wide as its experts:"
                     " moe_shared_expert_intermediate_size must be a multiple of {}",
                     width_of(args)));
    need(std::ranges::is_sorted(layers),
         "sigmoid scores make a glm4_moe model, whose dense layers come first: moe_layer_freq ([0]*m+[1]*n)");
  }
  return problems;
}

void add_experts(io::Json& json, const TrainingArguments& args) {
  const std::string family = family_of(args);
  const std::vector<bool> layers = expert_layers(args);
  json["model_type"] = family;
  json["num_experts_per_tok"] = args.router.topk.value_or(2);
  // The base was written for a dense llama or qwen model; families with experts have no bias in their MLPs.
  json.erase("mlp_bias");
  if (family == "mixtral") {
    json["num_local_experts"] = *args.moe.num_experts;
    json["intermediate_size"] = width_of(args);
    return;
  }
  json["moe_intermediate_size"] = width_of(args);
  // Softmax before the choice leaves weights that do not add up to 1, exactly when they are not normalized after it.
  json["norm_topk_prob"] = !on(args.router.pre_softmax);
  if (family == "glm4_moe") {
    json["n_routed_experts"] = *args.moe.num_experts;
    json["n_shared_experts"] = *args.moe.shared_expert_intermediate_size / width_of(args);
    json["first_k_dense_replace"] = std::ranges::count(layers, false);
    json["routed_scaling_factor"] = args.router.topk_scaling_factor.value_or(1);
    json["n_group"] = args.router.num_groups.value_or(1);
    json["topk_group"] = args.router.group_topk.value_or(1);
    json["attention_bias"] = on(args.layer.add_qkv_bias);
    json["use_qk_norm"] = on(args.layer.qk_layernorm);
    json["partial_rotary_factor"] = 1.0;
    return;
  }
  json["num_experts"] = *args.moe.num_experts;
  // Every layer has experts but those listed: the general form, which any pattern fits.
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = io::Json::array();
  for (size_t layer = 0; layer < layers.size(); ++layer)
    if (!layers[layer]) json["mlp_only_layers"].push_back(layer);
  if (family == "qwen2_moe") json["shared_expert_intermediate_size"] = *args.moe.shared_expert_intermediate_size;
}

}  // namespace megalith::run
