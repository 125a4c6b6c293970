#include "tests/parity/parity_point.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace megalith::testing {

namespace {

constexpr int kMaxRanks = 16, kSamples = 8;

std::vector<std::string> dense_families() {
  return {"llama", "qwen2", "gpt2", "mistral", "qwen3", "seed_oss", "megatron_gpt"};
}
std::vector<std::string> expert_families() {
  return {"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "glm4_moe", "qwen3_next", "megatron_gpt_moe"};
}

// Models whose tokens need others of their sequence outside of attention.
std::vector<std::string> border_families() {
  return {"qwen3_next", "deepseek_v3_mtp", "glm4_moe_mtp", "megatron_gpt_mtp"};
}

// qwen2 and gpt2 have tied embeddings.
std::vector<std::string> vocabulary_families() {
  return {"llama_grown", "qwen2_grown", "gpt2_grown", "llama_smooth", "qwen2_smooth"};
}

// Ids that a run adds: the files have rows for the first two, in reserve.
std::vector<int64_t> new_parity_tokens() { return {40, 46, 48, 51}; }

constexpr const char* kSuffixes[] = {"_mtp", "_grown", "_smooth"};

// The family without what its points have in addition.
std::string base_of(const std::string& family) {
  for (const std::string suffix : kSuffixes)
    if (family.ends_with(suffix)) return family.substr(0, family.size() - suffix.size());
  return family;
}

bool valid(const ParityPoint& p) {
  if (p.ranks() > kMaxRanks) return false;
  if (p.sequence_parallel && p.tp == 1) return false;
  if (p.vpp > 1 && p.pp == 1) return false;
  return p.dp * p.cp * p.tp % (p.ep * p.etp) == 0;
}

// Experts split their tokens over tp, so it comes with sequence parallelism.
bool valid_with_experts(const ParityPoint& p) { return valid(p) && (p.tp == 1 || p.sequence_parallel); }

using CanTake = bool (*)(const std::string& family, const ParityPoint& p);

// Delta nets split their heads over tp·cp and have their own points with cp.
bool can_take(const std::string& family, const ParityPoint& p) { return p.cp == 1 || family != "qwen3_next"; }

bool can_take_borders(const std::string& family, const ParityPoint& p) {
  const ReferenceConfig config = parity_config(family);
  if (config.delta_net && config.delta_net->key_heads % (p.tp * p.cp) != 0) return false;
  return config.experts || p.ep == 1;
}

// Ways that the heads of the family allow.
std::vector<std::string> ways_of(const ParityPoint& p) {
  const ReferenceConfig config = parity_config(p.family);
  const int64_t heads = config.num_heads / p.tp, kv_heads = std::max<int64_t>(1, config.num_kv_heads / p.tp);
  const auto dealt = [&](int64_t ranks) {
    return heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0);
  };
  std::vector<std::string> ways{"p2p", "all_gather"};
  if (dealt(p.cp)) ways.emplace_back("a2a");
  if (p.cp == 4 && dealt(2)) ways.emplace_back("a2a+p2p");
  return ways;
}

// Hands out families and ways in turn.
class Turns {
 public:
  explicit Turns(CanTake can_take) : can_take_(can_take) {}

  void take(const std::vector<std::string>& families, ParityPoint point, std::vector<ParityPoint>& points) {
    do {
      point.family = families[family_++ % families.size()];
    } while (!can_take_(point.family, point));
    point.all_gather_experts = has_experts(point.family) && ++dispatch_ % 2 == 0;
    if (point.cp > 1) {
      const std::vector<std::string> ways = ways_of(point);
      point.cp_comm_type = ways[way_++ % ways.size()];
    }
    points.push_back(point);
  }

 private:
  const CanTake can_take_;
  size_t family_ = 0, way_ = 0, dispatch_ = 0;
};

// Calls visit with every point of some sizes, valid or not.
template <typename Visit>
void each_flag(ParityPoint point, const Visit& visit) {
  for (const bool sp : {false, true})
    for (const bool packed : {false, true})
      for (const bool recompute : {false, true})
        for (const bool distributed : {false, true}) {
          point.sequence_parallel = sp;
          point.packed = packed;
          point.recompute = recompute;
          point.distributed_optimizer = distributed;
          visit(point);
        }
}

template <typename Visit>
void each_size(const std::vector<int>& eps, const std::vector<int>& etps, const Visit& visit) {
  ParityPoint p;
  for (p.tp = 1; p.tp <= 4; p.tp *= 2)
    for (p.pp = 1; p.pp <= 4; p.pp *= 2)
      for (p.vpp = 1; p.vpp <= 2; ++p.vpp)
        for (p.cp = 1; p.cp <= 4; p.cp *= 2)
          for (p.dp = 1; p.dp <= 2; ++p.dp)
            for (const int ep : eps)
              for (const int etp : etps) {
                p.ep = ep, p.etp = etp;
                each_flag(p, visit);
              }
}

// Everything at once that megatron_gpt has and no other family.
void set_all_switches(ReferenceConfig& config) {
  config.layer_norm = config.gated_attention = config.rope.interleaved = true;
  config.qkv_bias = config.out_bias = config.mlp_bias = true;
  config.gated_mlp = false;
  config.activation = "gelu_new";
  config.head_dim = 8;
  config.rope.partial_rotary_factor = 0.5;
  config.windows = {0, 6, 0, 6, 0, 6, 0, 6};
}

// Latent attention with experts that a softmax over all of them scores.
void set_deepseek_v2(ReferenceConfig& config) {
  config.latent.emplace();
  config.rope.interleaved = true;
  config.experts = ReferenceExperts{.shared_width = 16, .normalize = false, .scale = 1.5, .first_dense = 1};
}

}  // namespace

std::vector<std::string> parity_families() {
  std::vector<std::string> all = dense_families();
  for (std::string& family : expert_families()) all.push_back(std::move(family));
  return all;
}

bool is_grown(const std::string& family) { return family.ends_with("_grown"); }
double smoothing_of(const std::string& family) { return family.ends_with("_smooth") ? kParitySmoothing : 0; }

bool has_experts(const std::string& family) { return parity_config(family).experts.has_value(); }

ReferenceConfig parity_config(const std::string& family) {
  const std::string base = base_of(family);
  ReferenceConfig config = ReferenceConfig::of_family(base.starts_with("megatron_gpt") ? "megatron_gpt" : base);
  if (family.ends_with("_mtp")) config.mtp = 2;
  if (family == "megatron_gpt_moe") set_deepseek_v2(config);
  if (family == "megatron_gpt_mtp") config.qk_norm = true;  // qwen3 with prediction layers
  config.num_layers = 8;
  config.hidden_size = 32;
  config.intermediate_size = config.is_gpt2() ? 4 * config.hidden_size : 24;
  config.num_heads = 8;
  config.num_kv_heads = config.is_gpt2() ? 8 : 4;
  config.head_dim = config.qk_norm ? 16 : 4;  // a norm over few channels magnifies rounding
  config.vocab_size = 48;
  config.tied = config.is_gpt2() || base == "qwen2";
  if (family == "mistral") config.windows.assign(8, 6);
  if (family == "megatron_gpt") set_all_switches(config);
  if (config.experts) {
    config.experts->count = 8;
    if (family == "mixtral") config.experts->width = config.intermediate_size;
  }
  if (config.experts && config.experts->sigmoid) {
    config.experts->groups = 4;
    config.experts->group_topk = 2;
    config.experts->scale = 1.5;
  }
  if (config.latent) {
    config.latent->q_rank = 16;
    config.num_kv_heads = config.num_heads;
    config.head_dim = config.latent->rope;
  }
  if (config.delta_net) {
    config.delta_net = {
        .key_heads = 4, .value_heads = 8, .key_dim = 16, .value_dim = 16, .apart = config.delta_net->apart};
    config.norm_epsilon = 1e-3;  // its vectors are divided by their lengths, which may be small
  }
  return config;
}

std::string ParityPoint::layout() const {
  std::string text = fmt::format("tp {}{}, pp {}", tp,
                                 tp_overlap          ? " sp in slices"
                                 : sequence_parallel ? " sp"
                                                     : "",
                                 pp);
  if (vpp > 1) text += fmt::format(", vpp {}", vpp);
  text += cp > 1 ? fmt::format(", cp {} ({})", cp, cp_comm_type) : std::string(", cp 1");
  if (has_experts(family))
    text += fmt::format(", ep {}{}, etp {}", ep,
                        all_gather_experts ? " (allgather)"
                        : expert_overlap   ? " (beside another micro-batch)"
                                           : "",
                        etp);
  return text + fmt::format(", dp {}", dp);
}

std::string ParityPoint::name() const {
  return fmt::format("{}: {}{}{}{}", family, layout(), packed ? ", packed" : ", padded", recompute ? ", recompute" : "",
                     distributed_optimizer ? ", distributed optimizer" : "");
}

TrainerCase ParityPoint::trainer_case() const {
  TrainerCase how;
  how.name = name();
  how.tp = tp, how.pp = pp, how.dp = dp, how.cp = cp;
  if (vpp > 1) how.vpp = vpp;
  config::TrainingArguments& args = how.args;
  args.parallel.ep = ep;
  if (has_experts(family)) {
    args.parallel.etp = etp;
    args.moe.token_dispatcher =
        all_gather_experts ? config::TokenDispatcher::kAllGather : config::TokenDispatcher::kAllToAll;
  }
  args.moe.overlap_expert_parallel_comm = expert_overlap;
  args.parallel.sequence_parallel = sequence_parallel;
  args.parallel.tp_comm_overlap = tp_overlap;
  args.parallel.cp_comm_type = {cp_comm_type};
  if (cp_comm_type == "a2a+p2p") args.parallel.hierarchical_cp_sizes = {2, 2};
  if (recompute) args.recompute.granularity = config::RecomputeGranularity::kFull;
  args.batch.gradient_accumulation_steps = microbatches();
  args.batch.micro_batch_size = kSamples / dp / microbatches();
  args.optimizer.optimizer = config::OptimizerKind::kSgd;
  args.optimizer.optim = config::HfOptimizer::kSgd;
  args.optimizer.sgd_momentum = 0;
  args.optimizer.weight_decay = 0;
  args.optimizer.max_grad_norm = 0;
  args.optimizer.learning_rate = 0.05;
  args.optimizer.use_distributed_optimizer = distributed_optimizer;
  args.optimizer.label_smoothing_factor = smoothing_of(family);
  if (is_grown(family)) {
    how.vocab_size = kGrownRows;
    how.new_tokens = new_parity_tokens();
  }
  if (packed) how.collator.padding = data::Padding::kNone;
  return how;
}

std::vector<ParityPoint> lattice_points() {
  std::vector<ParityPoint> points;
  Turns turns(can_take);
  each_size({1}, {1}, [&](const ParityPoint& p) {
    if (valid(p)) turns.take(dense_families(), p, points);
  });
  each_size({1, 2, 4}, {1, 2}, [&](const ParityPoint& p) {
    if (valid_with_experts(p)) turns.take(expert_families(), p, points);
  });
  return points;
}

std::vector<ParityPoint> vocabulary_points() {
  std::vector<ParityPoint> points;
  Turns turns(can_take);
  each_size({1}, {1}, [&](const ParityPoint& p) {
    if (valid(p) && p.pp <= 2 && p.cp <= 2 && p.ranks() <= 8 && !p.recompute)
      turns.take(vocabulary_families(), p, points);
  });
  return points;
}

std::vector<ParityPoint> border_points() {
  std::vector<ParityPoint> points;
  Turns turns(can_take_borders);
  each_size({1, 2}, {1}, [&](const ParityPoint& p) {
    if (valid_with_experts(p) && p.cp > 1 && p.dp == 1) turns.take(border_families(), p, points);
  });
  return points;
}

std::vector<ParityPoint> sample_points(uint64_t seed, size_t count) {
  std::vector<ParityPoint> points = lattice_points();
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 1 < points.size() && i < count; ++i)
    std::swap(points[i], points[i + random() % (points.size() - i)]);
  points.resize(std::min(count, points.size()));
  return points;
}

}  // namespace megalith::testing
