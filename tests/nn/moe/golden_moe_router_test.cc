// Routing, losses, bias update and permutation against the reference's numbers (parallel/moe_router.json).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/nn/moe/balance.h"
#include "megalith/nn/moe/routing.h"
#include "tests/support/close.h"
#include "tests/support/golden.h"
#include "tests/support/run_ranks.h"

namespace megalith::nn {
namespace {

using nlohmann::json;
using testing::expect_close;
using Lists = std::vector<std::vector<int64_t>>;

constexpr double kNear = 2e-6;  // the file's numbers have eight digits; a wrong term differs by far more

at::Tensor matrix(const json& rows) {
  std::vector<at::Tensor> all;
  for (const json& row : rows) all.push_back(at::tensor(row.get<std::vector<double>>(), at::kDouble));
  return at::stack(all).to(at::kFloat);
}

std::vector<std::string> balancing(const json& item) {
  const json types = item.value("load_balancing", json("aux_loss"));
  return types.is_array() ? types.get<std::vector<std::string>>() : std::vector{types.get<std::string>()};
}
std::vector<double> coefficients(const json& item) {
  const json coeff = item.value("aux_coeff", json(0.0));
  return coeff.is_array() ? coeff.get<std::vector<double>>() : std::vector{coeff.get<double>()};
}

RouterShape shape_of(const json& item) {
  RouterShape shape;
  shape.experts = item.at("experts").is_null() ? 0 : item.at("experts").get<int64_t>();
  shape.topk = item.at("topk");
  shape.score =
      item.value("score_function", "softmax") == "sigmoid" ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
  shape.pre_softmax = item.value("pre_softmax", false);
  shape.scaling = item.value("scaling_factor", 1.0);
  shape.expert_bias = item.value("expert_bias", false);
  shape.groups = item.value("num_groups", int64_t{1});
  shape.group_topk = item.value("group_topk", int64_t{1});
  if (item.contains("capacity_factor")) shape.capacity_factor = item.at("capacity_factor").get<double>();
  shape.pad_to_capacity = item.value("pad_to_capacity", false);
  shape.drop_by_position = item.value("drop_policy", "probs") == "position";
  shape.z_coeff = item.value("z_coeff", 0.0);
  shape.per_token_loss = item.value("per_token_loss", false);
  const auto coeff = coefficients(item);
  const auto types = balancing(item);
  shape.sinkhorn = types[0] == "sinkhorn";
  for (size_t i = 0; i < types.size() && i < coeff.size(); ++i) {
    using Kind = BalanceLoss::Kind;
    if (types[i] == "none" || types[i] == "sinkhorn") continue;
    shape.losses.push_back({types[i] == "aux_loss"       ? Kind::kBatch
                            : types[i] == "seq_aux_loss" ? Kind::kSequence
                                                         : Kind::kGlobal,
                            coeff[i]});
  }
  return shape;
}

const char* golden_name(BalanceLoss::Kind kind) {
  switch (kind) {
    case BalanceLoss::Kind::kBatch:
      return "aux";
    case BalanceLoss::Kind::kSequence:
      return "seq_aux";
    case BalanceLoss::Kind::kGlobal:
      return "global_aux";
  }
  return "";
}

struct Losses {
  at::Tensor total;  // attached, summed
  std::map<std::string, double> attached, logged;
};

// The losses of one rank as the router puts them together. `global`: choices of earlier micro-batches, summed.
Losses losses_of(const at::Tensor& logits, const json& item, const comm::Group& group,
                 std::vector<at::Tensor>* global) {
  const RouterShape shape = shape_of(item);
  BalanceScope scope{.group = group};
  const auto bsz = item.at("bsz").get<int64_t>();
  double tokens = static_cast<double>(logits.size(0));
  if (item.contains("padding")) {
    scope.valid = at::tensor(item.at("padding").get<std::vector<int64_t>>(), at::kLong).eq(0);
    tokens = scope.valid.sum().item<double>();
  }
  const double per_token = shape.per_token_loss ? tokens : 1;
  Losses result{at::zeros({}), {}, {}};
  const auto add = [&](const std::string& name, const at::Tensor& loss, double coeff, double factor) {
    result.total = result.total + loss * (coeff * factor);
    result.attached[name] = loss.item<double>() * coeff * factor;
    result.logged[name] = loss.item<double>();
  };
  const at::Tensor scores = balance_scores(logits, shape);
  for (const BalanceLoss& each : shape.losses) {
    BalanceScope own = scope;
    double factor = per_token;
    if (each.kind == BalanceLoss::Kind::kSequence) {
      own.sequences = bsz;
      own.sequence = at::arange(logits.size(0), at::kLong).remainder(bsz);  // token = position · bsz + sequence
      if (shape.per_token_loss) factor /= static_cast<double>(bsz);
    }
    BalanceCounts counts = count_choices(scores, shape, own);
    if (each.kind == BalanceLoss::Kind::kGlobal && global) {
      global->push_back(counts.choices);
      counts.choices = at::stack(*global).mean(0);
    }
    add(golden_name(each.kind), balance_loss(scores, counts, shape, own), each.coeff, factor);
  }
  if (shape.z_coeff > 0) add("z", z_loss(logits, scope.valid), shape.z_coeff / group.size(), per_token);
  return result;
}

void expect_losses(const Losses& actual, const json& expected) {
  for (const auto& [name, values] : expected.items()) {
    ASSERT_TRUE(actual.attached.contains(name)) << name;
    expect_close(actual.attached.at(name), values.at("attached"), name + " attached", kNear);
    if (name != "z") expect_close(actual.logged.at(name), values.at("logged"), name + " logged", kNear);
  }
}

std::vector<int64_t> numbers_of(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// The experts and weights of each token after dropping and filling up, ascending.
struct Assigned {
  Lists experts;
  std::vector<std::vector<double>> weights;
};
Assigned assigned(const ExpertLists& lists, const at::Tensor& weights) {
  Assigned all{Lists(static_cast<size_t>(lists.tokens())), {}};
  all.weights.resize(static_cast<size_t>(lists.tokens()));
  const std::vector<int64_t> first = numbers_of(lists.first), tokens = numbers_of(lists.map.token);
  for (size_t expert = 0; expert + 1 < first.size(); ++expert)
    for (int64_t row = first[expert]; row < first[expert + 1]; ++row) {
      const int64_t token = tokens[static_cast<size_t>(row)];
      all.experts[static_cast<size_t>(token)].push_back(static_cast<int64_t>(expert));
      const at::Tensor here = lists.map.row[token].eq(row);  // all false for a filler
      all.weights[static_cast<size_t>(token)].push_back((weights[token] * here).sum().item<double>());
    }
  return all;
}

void expect_routing(const json& item, const Routing& routing, const ExpertLists& lists) {
  const Assigned actual = assigned(lists, routing.weights.detach());
  const Lists torch_answer = item.value("routing_torch_cpu", item.at("routing").get<Lists>());
  EXPECT_TRUE(actual.experts == item.at("routing").get<Lists>() || actual.experts == torch_answer);
  if (actual.experts != item.at("routing").get<Lists>()) return;
  const auto expected = item.at("probs").get<std::vector<std::vector<double>>>();
  for (size_t token = 0; token < expected.size(); ++token)
    for (size_t j = 0; j < expected[token].size(); ++j)
      expect_close(actual.weights[token][j], expected[token][j], fmt::format("weight of token {}", token), kNear, 1e-7);
  if (item.contains("local_tokens_per_expert"))
    expect_close(lists.load.to(at::kFloat), at::tensor(item.at("local_tokens_per_expert").get<std::vector<double>>()),
                 "load");
}

TEST(GoldenMoeRouter, routing_of_moe_router) {
  size_t number = 0;
  const json file = testing::golden_json("parallel/moe_router.json");
  for (const json& item : testing::golden_member(file, "routing")) {
    SCOPED_TRACE(fmt::format("routing case {}: {}", number++, json(item.value("load_balancing", json())).dump()));
    const RouterShape shape = shape_of(item);
    const at::Tensor logits = matrix(item.at("logits")).requires_grad_();
    const at::Tensor bias =
        item.contains("bias") ? at::tensor(item.at("bias").get<std::vector<double>>(), at::kFloat) : at::Tensor();
    const Routing routing = choose_experts(logits, shape, bias, /*training=*/true);
    const ExpertLists lists = list_tokens(routing, shape);
    expect_routing(item, routing, lists);
    if (item.contains("capacity")) {
      EXPECT_EQ(expert_capacity(logits.size(0), shape), item.at("capacity").get<int64_t>());
    }
    testing::run_ranks(1, [&](const testing::Rank& r) {
      const Losses losses = losses_of(logits, item, r.world.world(), nullptr);
      if (item.contains("losses")) expect_losses(losses, item.at("losses"));
      if (!item.contains("grad_logits")) return;
      const at::Tensor dprobs = matrix(item.at("dprobs")).gather(1, routing.experts);
      const at::Tensor weights = attach_loss(routing.weights, losses.total, 1);
      (weights * dprobs).sum().backward();
      expect_close(logits.grad(), matrix(item.at("grad_logits")), "gradient of the logits", kNear, 2e-7);
    });
  }
  EXPECT_GT(number, 0U);
}

TEST(GoldenMoeRouter, multi_rank_losses_of_moe_router) {
  const json file = testing::golden_json("parallel/moe_router.json");
  for (const json& item : testing::golden_member(file, "multi_rank_losses")) {
    SCOPED_TRACE(item.value("load_balancing", "aux_loss"));
    testing::run_ranks(item.at("group_size"), [&](const testing::Rank& r) {
      std::vector<at::Tensor> global;
      for (size_t i = 0; i < item.at("results").size(); ++i) {
        const auto rank = static_cast<size_t>(r.rank);
        const json& expected = item.at("results")[i][rank];
        const at::Tensor logits = matrix(item.at("logits")[i][rank]).requires_grad_();
        const Losses losses = losses_of(logits, item, r.world.world(), &global);
        expect_losses(losses, expected.at("losses"));
        losses.total.backward();
        expect_close(logits.grad(), matrix(expected.at("grad_logits")), "gradient of the logits", kNear, 2e-9);
      }
    });
  }
}

TEST(GoldenMoeRouter, expert_bias_update_of_moe_router) {
  const json file = testing::golden_json("parallel/moe_router.json");
  for (const json& item : testing::golden_member(file, "expert_bias_update")) {
    const at::Tensor load = matrix(item.at("counts_per_rank")).sum(0);
    const at::Tensor bias = at::tensor(item.at("bias").get<std::vector<double>>(), at::kFloat);
    expect_close(updated_bias(bias, load, item.at("rate")),
                 at::tensor(item.at("updated").get<std::vector<double>>(), at::kFloat), "bias", kNear);
  }
}

TEST(GoldenMoeRouter, sinkhorn_of_moe_router) {
  const json file = testing::golden_json("parallel/moe_router.json");
  for (const json& item : testing::golden_member(file, "sinkhorn")) {
    RouterShape shape{.experts = item.at("experts"), .topk = item.at("topk")};
    shape.sinkhorn = true;
    for (const bool training : {true, false}) {
      const json& expected = item.at(training ? "train" : "eval");
      const Routing routing = choose_experts(matrix(item.at("logits")), shape, {}, training);
      EXPECT_EQ(assigned(list_tokens(routing, shape), routing.weights).experts, expected.at("routing").get<Lists>());
      expect_close(routing.weights, matrix(expected.at("probs")), "weights", 1e-4);
    }
  }
}

// Choices of unequal number as rows of k, missing ones as if they had been dropped: weights 0, capacity for the others.
TEST(GoldenMoeRouter, permute_of_moe_router) {
  const json file = testing::golden_json("parallel/moe_router.json");
  for (const json& item : testing::golden_member(file, "permute")) {
    const auto routing = item.at("routing").get<Lists>();
    const auto probs = item.at("probs").get<std::vector<std::vector<double>>>();
    const int64_t experts = item.at("experts");
    size_t most = 0;
    for (const auto& row : routing) most = std::max(most, row.size());
    const auto tokens = static_cast<int64_t>(routing.size()), topk = static_cast<int64_t>(most);
    const at::Tensor chosen = at::full({tokens, topk}, experts, at::kLong), weights = at::zeros({tokens, topk});
    for (int64_t token = 0; token < tokens; ++token)
      for (size_t j = 0; j < routing[static_cast<size_t>(token)].size(); ++j) {
        chosen[token][static_cast<int64_t>(j)] = routing[static_cast<size_t>(token)][j];
        weights[token][static_cast<int64_t>(j)] = probs[static_cast<size_t>(token)][j];
      }
    const ops::SortedChoices sorted = ops::sort_choices(chosen, experts + 1);
    const at::Tensor counts = sorted.first.narrow(0, 0, experts + 1).diff();
    EXPECT_EQ(numbers_of(counts), item.at("tokens_per_expert").get<std::vector<int64_t>>());
    const int64_t rows = counts.sum().item<int64_t>();
    const ops::RowMap map{sorted.map.token.narrow(0, 0, rows), sorted.map.row.masked_fill(chosen.eq(experts), -1)};
    EXPECT_EQ(numbers_of(map.token), item.at("sorted_token").get<std::vector<int64_t>>());
    expect_close(ops::sum_rows(matrix(item.at("expert_out")), weights, map), matrix(item.at("combined")), "combined",
                 kNear);
  }
}

// Settings that cannot be: each is refused by the shape, or by the options that lead to it (config's tests).
TEST(GoldenMoeRouter, invalid_of_moe_router) {
  const json file = testing::golden_json("parallel/moe_router.json");
  for (const json& item : testing::golden_member(file, "invalid")) {
    SCOPED_TRACE(item.at("reason").get<std::string>());
    MoeShape shape{.router = shape_of(item), .hidden = 8, .width = 8};
    const bool by_options = item.at("topk") == 1 || balancing(item).size() != coefficients(item).size() ||
                            (item.contains("group_topk") && !item.contains("num_groups"));
    EXPECT_NE(problems(shape, item.at("ep"), 1).empty(), !by_options);
  }
}

}  // namespace
}  // namespace megalith::nn
