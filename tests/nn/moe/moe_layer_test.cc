// The layer in every layout against the dense reference: random routings, capacities, experts and ranks without tokens.
#include "megalith/nn/moe/moe_layer.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <random>

#include "megalith/nn/layer_input.h"
#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/experts.h"
#include "megalith/nn/moe/moe_shape.h"
#include "megalith/nn/moe/router.h"
#include "tests/nn/moe/moe_case.h"

namespace megalith::nn {
namespace {

using Dispatcher = MoeOptions::Dispatcher;

MoeShape small_shape(int64_t experts, int64_t topk) {
  return {.router = {.experts = experts, .topk = topk}, .hidden = 12, .width = 8};
}

std::vector<MoeGrid> grids() {
  std::vector<MoeGrid> all;
  for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kAllGather}) {
    const auto add = [&](int world, int tp, int ep, int etp) {
      all.push_back({world, tp, ep, etp, {.dispatcher = dispatcher}});
    };
    add(1, 1, 1, 1);
    add(2, 1, 2, 1);
    add(2, 2, 1, 2);
    add(2, 2, 1, 1);
    add(2, 2, 2, 1);
    add(4, 1, 4, 1);
    add(4, 1, 2, 1);  // two copies of the experts
    add(4, 2, 2, 2);
    add(4, 2, 4, 1);
    add(4, 2, 1, 2);
  }
  return all;
}

// Shares of 0 … 9 tokens, one of them nothing; every `equal` ranks in a row have the same.
std::vector<int64_t> unequal(int ranks, std::mt19937_64& random, int equal = 1) {
  std::vector<int64_t> counts;
  for (int i = 0; i < ranks; ++i) counts.push_back(static_cast<int64_t>(random() % 10));
  if (ranks > 1) counts[random() % counts.size()] = 0;
  for (int i = 0; i < ranks; ++i) counts[static_cast<size_t>(i)] = counts[static_cast<size_t>(i / equal * equal)];
  return counts;
}

TEST(MoeLayer, EqualsTheDenseReferenceInEveryLayout) {
  std::mt19937_64 random(7);
  for (const MoeGrid& grid : grids()) {
    const MoeShape shape = small_shape(4, 2);
    const FullTensors weights = random_moe_weights(shape, 3);
    const MoeTokens tokens = random_tokens(unequal(grid.world, random), shape.hidden, random());
    const MoeResult expected = dense_moe(shape, weights, tokens);
    expect_same(spread_moe(shape, weights, tokens, grid), expected, grid.name());
    expect_same(spread_moe(shape, weights, tokens, grid, /*main_grads=*/true), expected, grid.name() + " main_grad");
  }
}

TEST(MoeLayer, EveryRouterInEveryLayout) {
  std::mt19937_64 random(11);
  std::vector<RouterShape> routers;
  routers.push_back({.experts = 8, .topk = 3, .pre_softmax = true, .scaling = 2.5});
  routers.push_back({.experts = 8, .topk = 1, .pre_softmax = true});
  routers.push_back({.experts = 8, .topk = 8});
  routers.push_back({.experts = 4, .topk = 2, .score = ScoreFunction::kSigmoid, .scaling = 1.5, .expert_bias = true});
  routers.push_back({.experts = 4, .topk = 2, .dtype = at::kDouble});
  routers.push_back({.experts = 4, .topk = 2, .capacity_factor = 0.75});
  routers.push_back({.experts = 4, .topk = 2, .capacity_factor = 0.5, .drop_by_position = true});
  routers.push_back({.experts = 4, .topk = 2, .capacity_factor = 1.25, .pad_to_capacity = true});
  for (const RouterShape& router : routers)
    for (const MoeGrid& grid : grids()) {
      MoeShape shape = small_shape(router.experts, router.topk);
      shape.router = router;
      const FullTensors weights = random_moe_weights(shape, random());
      // Ranks of one replica divide its tokens evenly, and with padding rely on it.
      const int equal = router.pad_to_capacity ? grid.tp : 1;
      const MoeTokens tokens = random_tokens(unequal(grid.world, random, equal), shape.hidden, random());
      expect_same(spread_moe(shape, weights, tokens, grid), dense_moe(shape, weights, tokens),
                  fmt::format("{} {} of {} experts", grid.name(), router.topk, router.experts));
    }
}

TEST(MoeLayer, SharedExpertsWithAndWithoutGate) {
  std::mt19937_64 random(13);
  for (const bool gate : {false, true})
    for (const auto& [overlap, twice] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)})
      for (MoeGrid grid : grids()) {
        MoeShape shape = small_shape(4, 2);
        shape.shared_width = 8;
        shape.shared_gate = gate;
        grid.options.overlap_shared = overlap;
        grid.options.recompute_shared = grid.options.recompute_activation = twice;
        const FullTensors weights = random_moe_weights(shape, random());
        const MoeTokens tokens =
            random_tokens(std::vector<int64_t>(static_cast<size_t>(grid.world), 6), shape.hidden, random());
        expect_same(spread_moe(shape, weights, tokens, grid), dense_moe(shape, weights, tokens), grid.name());
      }
}

// Scales belong to rows, so that it does not matter which rank an expert is on, and which other rows it has. Only a
// width that is split over ranks is cast in other pieces.
TEST(MoeLayer, ExpertsInFp8EqualOneRank) {
  std::mt19937_64 random(19);
  MoeShape shape = small_shape(4, 2);
  shape.hidden = 32;
  shape.width = 32;
  const FullTensors weights = random_moe_weights(shape, 5);
  const auto worst = [](const MoeResult& a, const MoeResult& b) {
    double most = 0;
    for (size_t rank = 0; rank < a.y.size(); ++rank)
      if (a.y[rank].size(0) > 0)
        most = std::max(most, ((a.y[rank] - b.y[rank]).abs().max() / b.y[rank].abs().max()).item<double>());
    for (const auto& [name, grad] : b.grads)
      if (name != "router.weight")
        most = std::max(most, ((a.grads.at(name) - grad).abs().max() / grad.abs().max()).item<double>());
    return most;
  };
  for (MoeGrid grid : grids()) {
    SCOPED_TRACE(grid.name());
    const MoeTokens tokens = random_tokens(std::vector<int64_t>(static_cast<size_t>(grid.world), 7), 32, random());
    const MoeGrid alone{.options = {.fp8 = true}, .fp8 = ops::Fp8Recipe{}};
    // One rank with the tokens of all.
    const MoeTokens all{{at::cat(tokens.x)}, {at::cat(tokens.dy)}};
    MoeResult expected = spread_moe(shape, weights, all, alone);
    expected.y = expected.y[0].split(7);
    expected.dx = expected.dx[0].split(7);
    grid.fp8 = alone.fp8;
    grid.options.fp8 = true;
    grid.options.recompute_activation = grid.world == 2;
    const MoeResult actual = spread_moe(shape, weights, tokens, grid);
    if (grid.etp == 1)
      expect_same(actual, expected, "the same in fp8");
    else
      EXPECT_LT(worst(actual, expected), 0.1);
    const double rounded = worst(actual, dense_moe(shape, weights, tokens));
    EXPECT_GT(rounded, 1e-3) << "nothing was in fp8";
    EXPECT_LT(rounded, 0.25) << "e4m3 has three bits, and a gradient passes four of these products";
  }
}

// 12 columns fit no product in fp8.
TEST(MoeLayer, ExpertsThatDoNotFitStayAsTheyAre) {
  const MoeShape shape = small_shape(4, 2);
  const FullTensors weights = random_moe_weights(shape, 5);
  const MoeTokens tokens = random_tokens({9}, shape.hidden, 3);
  expect_same(spread_moe(shape, weights, tokens, {.options = {.fp8 = true}, .fp8 = ops::Fp8Recipe{}}),
              dense_moe(shape, weights, tokens), "fp8");
}

TEST(MoeLayer, DispatchAndCombineAreTheIdentity) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 8; ++round)
    for (const MoeGrid& grid : grids()) {
      const RouterShape router{.experts = 4, .topk = 2};
      const auto counts = unequal(grid.world, random);
      const uint64_t seed = random();
      testing::run_ranks(grid.world, [&](const testing::Rank& r) {
        const parallel::ParallelContext context(
            r.world, layout::RankGrid({.world_size = grid.world, .tp = grid.tp, .ep = grid.ep, .etp = grid.etp}));
        const int64_t t = counts[static_cast<size_t>(r.rank)];
        const uint64_t own = seed + static_cast<uint64_t>(r.rank) * 100;
        const at::Tensor x = leaf(random_tensor({t, 6}, own));
        Routing routing = choose_experts(random_tensor({t, 4}, own + 1), router, {}, true);
        const ExpertLists lists = list_tokens(routing, router);
        const auto ranks = ExpertRanks::of(context);
        const Dispatcher dispatcher = grid.options.dispatcher;
        const bool known = knows_sizes(lists, ranks, dispatcher);
        const auto plan =
            plan_dispatch(lists, ranks, dispatcher, known ? nullptr : gather_loads(lists, ranks, dispatcher));
        // Experts that do nothing, each etp rank a part of it.
        const at::Tensor rows = plan->dispatch(x, nullptr);
        const at::Tensor y = plan->combine(rows / grid.etp, routing.weights, [] { return at::Tensor(); });
        expect_close(y, x, grid.name());
        const at::Tensor dy = random_tensor({t, 6}, own + 2);
        y.backward(dy);
        expect_close(x.grad(), dy, grid.name() + " backward");
      });
    }
}

// On one rank the host knows nothing but the number of rows, and the experts can make and weigh them.
TEST(MoeLayer, RowsOfOneRankCanBeMadeAgain) {
  testing::run_ranks(1, [](const testing::Rank& r) {
    const parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    const auto ranks = ExpertRanks::of(context);
    const RouterShape router{.experts = 6, .topk = 2};
    for (const int64_t t : {0, 1, 13}) {
      const at::Tensor logits = random_tensor({t, 6}, 3);
      logits.select(1, 4).fill_(-100);  // an expert that nobody wants
      const Routing routing = choose_experts(logits, router, {}, true);
      const ExpertLists lists = list_tokens(routing, router);
      EXPECT_TRUE(knows_sizes(lists, ranks, Dispatcher::kAllToAll));
      const auto plan = plan_dispatch(lists, ranks, Dispatcher::kAllToAll, nullptr);
      const at::Tensor x = random_tensor({t, 5}, 4);
      const at::Tensor rows = plan->dispatch(x, nullptr);
      const LocalRows local = plan->local(x, routing.weights);
      EXPECT_TRUE(local.recompute().equal(rows));
      const auto none = [] { return at::Tensor(); };
      expect_close(plan->combine(rows * local.weights.unsqueeze(1), {}, none),
                   plan->combine(rows, routing.weights, none), "combined");
      std::vector<int64_t> counts(6, 0);
      for (int64_t i = 0; i < 2 * t; ++i) ++counts[static_cast<size_t>(routing.experts.flatten()[i].item<int64_t>())];
      EXPECT_EQ(plan->counts().on_host(), counts);
    }
  });
}

// Experts apply the weights themselves where nothing has to be sent: the same as weighing their outputs, but no rows
// are kept.
TEST(MoeLayer, ExpertsApplyTheWeightsOfTheirRows) {
  const ops::GroupCounts counts{3, 0, 2, 4};
  for (const bool gated : {false, true})
    for (const bool twice : {false, true}) {
      MoeShape shape = small_shape(4, 2);
      shape.gated = gated;
      const auto run = [&](bool local) {
        ParameterSet set(at::kFloat, at::kCPU);
        const Experts experts(ParameterScope(set), shape, {0, 4}, twice, /*fp8=*/{});
        uint64_t seed = 1;
        const at::NoGradGuard no_grad;
        for (const auto& p : set.all()) p->value.copy_(random_tensor(p->value.sizes(), ++seed, 0.3));
        const at::AutoGradMode record(true);
        const at::Tensor rows = leaf(random_tensor({9, shape.hidden}, 20)), weights = leaf(random_tensor({9}, 21));
        const LocalRows there{[rows] { return rows.detach(); }, weights};
        const at::Tensor y =
            local ? experts.forward(rows, counts, there) : experts.forward(rows, counts) * weights.unsqueeze(1);
        y.backward(random_tensor({9, shape.hidden}, 22));
        std::vector<at::Tensor> result{y.detach(), rows.grad(), weights.grad()};
        for (const auto& p : set.all()) result.push_back(grad_of(*p));
        return result;
      };
      const auto local = run(true), plain = run(false);
      for (size_t i = 0; i < plain.size(); ++i)
        expect_close(local[i], plain[i], fmt::format("result {}, gated {}, twice {}", i, gated, twice));
    }
}

// There experts apply the weights themselves, rows are made again in backward, and lists are made on the device.
TEST(MoeLayerOnCuda, EqualsTheCpu) {
  if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU";
  testing::run_ranks(1, [](const testing::Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    std::vector<RouterShape> routers(5, {.experts = 8, .topk = 3});
    routers[1].dtype = at::kDouble;
    for (size_t i = 2; i < routers.size(); ++i) routers[i].capacity_factor = 0.75;
    routers[3].drop_by_position = true;
    routers[4].pad_to_capacity = true;
    for (const RouterShape& router : routers) {
      MoeShape shape = small_shape(8, 3);
      shape.hidden = 64;
      shape.width = 32;
      shape.router = router;
      const auto run = [&](at::Device device) {
        ParameterSet set(at::kFloat, device);
        const MoeLayer layer(ParameterScope(set), shape, {}, {context.tp(), false}, context);
        load(set, random_moe_weights(shape, 5));
        attach_main_grads(set);
        for (const auto& p : set.all()) p->grad.main_grad = p->grad.main_grad.to(device);
        LayerInput input;
        input.layout = ops::SequenceLayout::packed({33});
        const at::Tensor x = leaf(random_tensor({33, 64}, 1).to(device));
        const at::Tensor y = layer.forward(x, random_tensor({33, 64}, 2).to(device), input);
        y.backward(random_tensor({33, 64}, 3).to(device));
        std::vector<at::Tensor> results{y.detach().cpu(), x.grad().cpu()};
        for (const auto& p : set.all()) results.push_back(grad_of(*p).cpu());
        return results;
      };
      const auto cuda = run(at::kCUDA), cpu = run(at::kCPU);
      for (size_t i = 0; i < cpu.size(); ++i)
        expect_close(cuda[i], cpu[i], fmt::format("result {}", i), 0, 1e-4 * cpu[i].abs().max().item<double>());
    }
  });
}

TEST(MoeLayer, RoutesAsRecorded) {
  testing::run_ranks(1, [](const testing::Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    const MoeShape shape = small_shape(4, 2);
    ParameterSet set(at::kFloat, at::kCPU);
    const MoeLayer layer(ParameterScope(set), shape, {}, {context.tp(), false}, context);
    const FullTensors weights = random_moe_weights(shape, 5);
    load(set, weights);
    LayerInput input;
    input.layout = ops::SequenceLayout::packed({9});
    const at::Tensor x = random_tensor({9, shape.hidden}, 1), other = random_tensor({9, shape.hidden}, 2);
    layer.router()->start_recording();
    layer.forward(x, {}, input);
    const auto decisions = layer.router()->take_recorded();
    ASSERT_EQ(decisions.size(), 1U);
    layer.router()->replay(decisions);
    layer.router()->start_recording();
    layer.forward(other, {}, input);  // its own scores would choose others
    layer.forward(other, {}, input);
    const auto taken = layer.router()->take_recorded();
    EXPECT_TRUE(taken[0].equal(decisions[0]));
    EXPECT_FALSE(taken[1].equal(decisions[0]));
    layer.router()->replay({at::zeros({3, 2}, at::kLong)});
    testing::expect_error<InternalError>([&] { layer.forward(x, {}, input); }, {"3 tokens is replayed for 9"});
  });
}

TEST(MoeLayer, CountsTheLoadAndMovesTheBias) {
  testing::run_ranks(1, [](const testing::Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 1}));
    MoeShape shape = small_shape(4, 1);
    shape.router = {.experts = 4,
                    .topk = 1,
                    .score = ScoreFunction::kSigmoid,
                    .expert_bias = true,
                    .bias_update_rate = 0.5,
                    .z_coeff = 1e-3};
    shape.router.losses = {{BalanceLoss::Kind::kBatch, 0.01}};
    ParameterSet set(at::kFloat, at::kCPU);
    const MoeLayer layer(ParameterScope(set), shape, {}, {context.tp(), false}, context);
    FullTensors weights = random_moe_weights(shape, 5);
    weights["router.bias"] = at::tensor({9.0, 0.0, 0.0, 0.0}, at::kFloat);  // everybody to the first
    load(set, weights);
    LayerInput input;
    input.layout = ops::SequenceLayout::packed({8});
    layer.forward(random_tensor({8, shape.hidden}, 1), {}, input);
    {
      const at::NoGradGuard no_grad;  // the first pass of a recomputed layer
      layer.forward(random_tensor({8, shape.hidden}, 1), {}, input);
    }
    const RouterStatistics& seen = layer.router()->statistics();
    EXPECT_EQ(seen.micro_batches, 1);
    EXPECT_TRUE(seen.load.equal(at::tensor({8.0, 0.0, 0.0, 0.0}, at::kFloat)));
    ASSERT_EQ(seen.losses.size(), 2U);
    EXPECT_EQ(seen.losses[0].name, "load_balancing_loss");
    EXPECT_EQ(seen.losses[1].name, "z_loss");
    ASSERT_EQ(seen.spread.size(), 2U);
    EXPECT_EQ(seen.spread[0].name, "expert_distributed_std");
    EXPECT_EQ(seen.spread[1].name, "max_token_per_expert");
    const at::Tensor logits = random_tensor({8, shape.hidden}, 1).mm(weights.at("router.weight").t());
    const at::Tensor chosen = balance_counts(balance_scores(logits, shape.router), 1).sum(0);  // without the bias
    expect_close(seen.spread[0].sum, chosen.std(/*unbiased=*/false), "standard deviation");
    EXPECT_TRUE(seen.spread[1].sum.equal(chosen.max()));
    layer.router()->end_step(seen.load.clone());
    expect_close(set.find("router.bias")->value, at::tensor({8.5, 0.5, 0.5, 0.5}, at::kFloat), "bias");
    layer.router()->begin_step();
    EXPECT_EQ(layer.router()->statistics().micro_batches, 0);
  });
}

void expect_refused(const MoeShape& shape, const MoeGrid& grid, const std::vector<std::string>& parts) {
  testing::run_ranks(grid.world, [&](const testing::Rank& r) {
    parallel::ParallelContext context(
        r.world, layout::RankGrid({.world_size = grid.world, .tp = grid.tp, .ep = grid.ep, .etp = grid.etp}));
    ParameterSet set(at::kFloat, at::kCPU);
    testing::expect_error<ConfigError>(
        [&] {
          const MoeLayer layer(ParameterScope(set), shape, {}, {context.tp(), true}, context);
        },
        parts);
  });
}

TEST(MoeLayer, SizesThatDoNotFitAreRefusedWithTheFix) {
  expect_refused(small_shape(3, 2), {.world = 2, .ep = 2},
                 {"3 experts cannot be shared out over expert_model_parallel_size 2", "divides them"});
  expect_refused(small_shape(4, 5), {}, {"chooses 5 of 4 experts", "1 to all"});
  MoeShape odd = small_shape(4, 2);
  odd.width = 7;
  expect_refused(odd, {.world = 2, .tp = 2, .etp = 2}, {"width 7", "expert_tensor_parallel_size 2"});
  MoeShape grouped = small_shape(4, 2);
  grouped.router.groups = 3;
  expect_refused(grouped, {}, {"4 experts cannot form 3 groups"});
  MoeShape biased = small_shape(4, 2);
  biased.router.expert_bias = true;
  expect_refused(biased, {}, {"moe_router_enable_expert_bias", "moe_router_score_function sigmoid"});
}

TEST(MoeLayer, TensorParallelTrainingWithoutSequenceParallelismIsRefused) {
  testing::run_ranks(2, [](const testing::Rank& r) {
    parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .tp = 2}));
    ParameterSet set(at::kFloat, at::kCPU);
    const MoeLayer layer(ParameterScope(set), small_shape(4, 2), {}, {context.tp(), false}, context);
    LayerInput input;
    testing::expect_error<ConfigError>([&] { layer.forward(at::zeros({4, 12}), {}, input); }, {"sequence_parallel"});
  });
}

}  // namespace
}  // namespace megalith::nn
