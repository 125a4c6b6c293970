// The layers themselves know which of their weights they multiply in fp8 (nn::Attachments::in_fp8), so the count walks
// over the parameters of a model on the meta device. It is the model of one rank, since the widths of a product depend
// on tensor parallelism, but with all layers. Every weight that is multiplied costs 2 FLOPs per token and product:
//
//   y = x Wᵀ     always
//   dx = dy W    always (that of the very first layer is not left out)
//   dW = dyᵀ x   if the weight is trained
#include "megalith/model/fp8/fp8_share.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/layout/vocab_split.h"
#include "megalith/model/gpt_model.h"
#include "megalith/model/model_flops.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/ops/gemm/grouped_fp8.h"

namespace megalith::model {

namespace {

// Whether a parameter is a matrix that multiplies activations.
bool is_multiplied(const nn::Parameter& parameter) {
  return parameter.spec.use != nn::WeightUse::kOther && parameter.spec.use != nn::WeightUse::kLookup;
}

bool is_grouped(const nn::Parameter& parameter) {
  return parameter.spec.use == nn::WeightUse::kGroupedColumn || parameter.spec.use == nn::WeightUse::kGroupedRow;
}

// Whether the parameter belongs to a layer; otherwise to embedding or head.
bool is_inside(const nn::Parameter& parameter) {
  return parameter.spec.name.starts_with("layers.") || parameter.spec.name.starts_with("mtp.");
}

// "layers.3.mlp.down.weight" -> "layers.*.mlp.down.weight": layers of one kind share a line.
std::string without_layer(const std::string& name) {
  std::string result;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool number = i > 0 && name[i - 1] == '.' && name[i] >= '0' && name[i] <= '9';
    if (!number) {
      result += name[i];
      continue;
    }
    result += '*';
    while (i + 1 < name.size() && name[i + 1] != '.') ++i;
  }
  return result;
}

// Adds up the FLOPs of one token.
class FlopCount {
 public:
  FlopCount(const ModelConfig& config, const ModelOptions& options, const layout::GridShape& grid)
      : config_(config),
        recipe_(*options.fp8),
        grid_(grid),
        experts_wanted_(options.moe.fp8),
        experts_possible_(ops::has_grouped_fp8(options.device)) {}

  void add_fp8(double flops) { in_fp8_ += flops; }
  void add_rest(std::string what, std::string why, double flops) {
    if (flops <= 0) return;
    Fp8Share::Rest rest{std::move(what), std::move(why)};
    const auto same = std::ranges::find(rest_, rest, [](Fp8Share::Rest r) {
      r.share = 0;
      return r;
    });
    (same == rest_.end() ? rest_.emplace_back(std::move(rest)) : *same).share += flops;
  }

  // Multiplications of one product per token, in the whole model. A token meets only some of the experts.
  double multiplications(const nn::Parameter& parameter) const {
    const nn::ParameterSpec& spec = parameter.spec;
    double count = static_cast<double>(parameter.value.numel());
    if (spec.split_over_tp) count *= spec.expert ? grid_.expert_tp() : grid_.tp;
    if (spec.expert)
      count *= static_cast<double>(config_.moe->router.topk) / static_cast<double>(config_.moe->router.experts);
    return count;
  }

  // Adds the products of one weight inside a layer.
  void add_weight(const nn::Parameter& parameter) {
    const double product = 2 * multiplications(parameter);
    const double weight_grad = parameter.value.requires_grad() ? product : 0;
    if (experts_possible_ && parameter.attached.grouped_fp8) {
      add_fp8(2 * product);
      return add_rest("weight gradients of experts", "they add up tokens, which have scales of their own", weight_grad);
    }
    if (!parameter.attached.in_fp8) {
      const auto [what, why] = reason(parameter);
      return add_rest(what, why, 2 * product + weight_grad);
    }
    add_fp8(2 * product);
    if (recipe_.weight_gradients)
      add_fp8(weight_grad);
    else
      add_rest("weight gradients", "fp8_wgrad is off", weight_grad);
  }

  Fp8Share share() {
    double all = in_fp8_;
    for (const Fp8Share::Rest& rest : rest_) all += rest.share;
    for (Fp8Share::Rest& rest : rest_) rest.share /= all;
    std::ranges::stable_sort(rest_, std::greater<>(), &Fp8Share::Rest::share);
    return {in_fp8_ / all, std::move(rest_)};
  }

 private:
  // Returns what is not in fp8 and why.
  std::pair<std::string, std::string> reason(const nn::Parameter& parameter) const {
    if (parameter.spec.role == nn::ParameterRole::kAdapter) return {"adapters", "their products are narrow"};
    if (parameter.spec.use == nn::WeightUse::kRouter) return {"routers", "small errors would change the choice"};
    if (is_grouped(parameter)) return {"experts", reason_of_experts(parameter)};
    if (nn::applies_fp8(recipe_, parameter.value)) return {"first and last layer", kInsideOnly};
    return {without_layer(parameter.spec.name),
            fmt::format("its sizes on a rank, {} x {}, are not multiples of {}", parameter.value.size(0),
                        parameter.value.size(1), ops::fp8_width_multiple(recipe_.scaling))};
  }

  std::string reason_of_experts(const nn::Parameter& parameter) const {
    const int64_t rows = parameter.value.size(0) / held_experts(), columns = parameter.value.size(1);
    if (!experts_wanted_) return "fp8_experts is not set";
    if (!ops::fits_fp8(rows, columns))
      return fmt::format("their sizes on a rank, {} x {}, are not multiples of 16", rows, columns);
    return experts_possible_ ? kInsideOnly : "only GPUs of compute capability 9 have grouped products in fp8";
  }
  // The model that is counted has all experts on one rank.
  int64_t held_experts() const { return config_.moe->router.experts; }

  static constexpr const char* kInsideOnly = "first_last_layers_bf16 is set";

  const ModelConfig& config_;
  const ops::Fp8Recipe recipe_;
  const layout::GridShape grid_;
  const bool experts_wanted_, experts_possible_;  // by the options, and by the device of the run
  double in_fp8_ = 0;
  std::vector<Fp8Share::Rest> rest_;  // `share` is a count until share()
};

// Adds the products of the parts that state their multiplications themselves (delta nets, a family's own parts), beyond
// those of their weights.
void add_stated(FlopCount& count, const ModelConfig& config, const nn::ParameterSet& parameters) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    for (const auto& [branch, stated] : {std::pair("attention", attention_kind(config, layer)->facts().multiplications),
                                         std::pair("mlp", feed_forward_kind(config, layer)->facts().multiplications)}) {
      if (!stated) continue;
      double weights = 0;
      for (const auto& parameter : parameters.all())
        if (is_multiplied(*parameter) && parameter->spec.role != nn::ParameterRole::kAdapter &&
            parameter->spec.name.starts_with(fmt::format("layers.{}.{}.", layer, branch)))
          weights += count.multiplications(*parameter);
      count.add_rest("products of states", "they are not linear layers", 6 * (static_cast<double>(*stated) - weights));
    }
}

// The head, once more for every depth of multi-token prediction; tied to the embedding it has no weight of its own.
void add_head(FlopCount& count, const ModelConfig& config, const ModelOptions& options, int tp,
              const nn::ParameterSet& parameters) {
  double weights = config.tied_embeddings ? static_cast<double>(config.hidden_size * config.vocab_size) : 0;
  bool trained = true;
  for (const auto& parameter : parameters.all()) {
    if (is_inside(*parameter) || parameter->spec.role == nn::ParameterRole::kAdapter) continue;
    const bool tied = config.tied_embeddings && parameter->spec.use == nn::WeightUse::kLookup;
    if (is_multiplied(*parameter)) weights += count.multiplications(*parameter);
    if (tied || is_multiplied(*parameter)) trained = parameter->value.requires_grad();
  }
  const double product = 2 * weights * static_cast<double>(1 + config.mtp_layers), weight_grad = trained ? product : 0;
  if (!options.fp8_head || options.loss_chunk == 0)
    return count.add_rest("head", "its rounding errors would go straight into the loss", 2 * product + weight_grad);
  const int64_t rows = layout::padded_vocab_size(config.vocab_size, options.vocab_multiple, tp) / tp;
  if (!ops::fits_fp8(rows, config.hidden_size))
    return count.add_rest(
        "head", fmt::format("its sizes on a rank, {} x {}, are not multiples of 16", rows, config.hidden_size),
        2 * product + weight_grad);
  count.add_fp8(2 * product);
  if (options.fp8->weight_gradients) return count.add_fp8(weight_grad);
  count.add_rest("weight gradients", "fp8_wgrad is off", weight_grad);
}

}  // namespace

Fp8Share fp8_share(const ModelConfig& config, const ModelOptions& options, const layout::GridShape& grid,
                   int64_t length) {
  check(options.fp8.has_value(), "fp8_share counts the products of a model with fp8");
  ModelOptions without_memory = options;
  without_memory.device = at::kMeta;
  without_memory.vocab_multiple = 1;  // padding of the vocabulary is not work
  layout::GridShape rank;
  rank.tp = grid.tp;
  rank.etp = grid.expert_tp();
  rank.world_size = std::lcm(rank.tp, *rank.etp);
  const auto worlds = comm::World::in_process(rank.world_size);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(rank));
  const GptModel model(config, without_memory, ChunkPlace::whole(config), context);

  FlopCount count(config, options, rank);
  for (const auto& parameter : model.parameters().all())
    if (parameter->spec.role == nn::ParameterRole::kAdapter || (is_inside(*parameter) && is_multiplied(*parameter)))
      count.add_weight(*parameter);
  add_head(count, config, options, rank.tp, model.parameters());
  add_stated(count, config, model.parameters());
  // A token meets as many others as its sequence is long; model_flops halves that for the causal mask.
  count.add_rest("attention", "scores and values are products of activations",
                 layout::model_flops(flops_shape(config), 0.0, static_cast<double>(length)));
  return count.share();
}

std::string percent_text(double share) {
  return share > 0 && share < 0.0005 ? "< 0.1 %" : fmt::format("{:.1f} %", 100 * share);
}

std::string text_of(const Fp8Share::Rest& rest) {
  return fmt::format("{} {}: {}", percent_text(rest.share), rest.what, rest.why);
}

}  // namespace megalith::model
