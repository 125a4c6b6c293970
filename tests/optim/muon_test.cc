// Muon against torch.optim.Muon, its matrices in flat buffers, and the same training in every layout.
#include "megalith/optim/rules/muon.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "megalith/hf/safetensors_file.h"
#include "megalith/nn/parameter/matrix.h"
#include "megalith/optim/matrices.h"
#include "megalith/optim/matrix_update.h"
#include "megalith/optim/rules/sgd.h"
#include "tests/model/model_support.h"
#include "tests/optim/memory_source.h"
#include "tests/optim/train_case.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using config::MuonCoefficients;
using config::MuonScale;
using config::MuonTpMode;
using optim::Matrix;
using optim::Muon;
using optim::MuonSettings;

std::shared_ptr<const Muon> muon(const MuonSettings& settings) { return std::make_shared<Muon>(settings); }

// ---- torch.optim.Muon ----

struct GoldenCase {
  std::string name;
  MuonSettings settings;
  double tolerance = kClose;
};

// Two weights of a rank that has the run to itself.
struct TwoWeights {
  TwoWeights(const Rank& rank, const hf::SafetensorsFile& file, const GoldenCase& how)
      : context(rank.world, layout::RankGrid({.world_size = 1})), set(at::kFloat, at::kCPU) {
    const at::NoGradGuard no_grad;
    for (const char* shape : {"wide", "tall"}) {
      const at::Tensor start = file.tensor(fmt::format("{}.{}.after0", how.name, shape));
      nn::Parameter& parameter = nn::ParameterScope(set).add(
          {.name = fmt::format("{}.weight", shape), .use = nn::WeightUse::kColumn}, start.sizes().vec());
      parameter.value.copy_(start);
      weights.emplace_back(shape, &parameter);
    }
    ddp.emplace(std::vector{weights[0].second, weights[1].second}, optim::DdpSettings{.matrices_apart = true}, context);
    optimizer.emplace(std::vector{&*ddp}, optim::OptimizerSettings{.muon = muon(how.settings), .clip_grad = 0},
                      context);
    for (optim::ParamGroup& group : optimizer->groups()) group.lr = 0.02, group.weight_decay = 0.1;
  }

  const parallel::ParallelContext context;
  nn::ParameterSet set;
  std::vector<std::pair<std::string, nn::Parameter*>> weights;
  std::optional<optim::DistributedDataParallel> ddp;
  std::optional<optim::Optimizer> optimizer;
  optim::GradScaler scaler = optim::GradScaler::constant(1);
};

class MuonGolden : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(MuonGolden, StepsAreThoseOfTorch) {
  const hf::SafetensorsFile file("tests/data/optim/muon.safetensors");
  run_ranks(1, [&](const Rank& rank) {
    TwoWeights run(rank, file, GetParam());
    for (int step = 0; step < 4; ++step) {
      for (const auto& [shape, weight] : run.weights)
        weight->grad.main_grad.copy_(file.tensor(fmt::format("{}.{}.grad{}", GetParam().name, shape, step)));
      EXPECT_TRUE(run.optimizer->step(run.scaler).updated);
      for (const auto& [shape, weight] : run.weights)
        expect_close(weight->value.detach(),
                     file.tensor(fmt::format("{}.{}.after{}", GetParam().name, shape, step + 1)),
                     fmt::format("{} after step {}", shape, step + 1), GetParam().tolerance);
    }
  });
}

constexpr MuonSettings kTorch{.nesterov = true,
                              .scale = MuonScale::kShapeScaling,
                              .coefficients = MuonCoefficients::kSimple,
                              .fp32_products = true};

MuonSettings of_torch(const std::function<void(MuonSettings&)>& change) {
  MuonSettings settings = kTorch;
  change(settings);
  return settings;
}

// torch divides by the norm after its cast to bf16, Megatron before it, so that the first rounding differs.
INSTANTIATE_TEST_SUITE_P(
    Cases, MuonGolden,
    ::testing::Values(GoldenCase{"fp32_original", kTorch}, GoldenCase{"fp32_match_rms", of_torch([](MuonSettings& s) {
                                                                        s.momentum = 0.9,
                                                                        s.scale = MuonScale::kSpectral,
                                                                        s.extra_scale = 0.2;
                                                                      })},
                      GoldenCase{"fp32_plain",
                                 of_torch([](MuonSettings& s) { s.momentum = 0.8, s.nesterov = false, s.steps = 3; })},
                      GoldenCase{"bf16_original", of_torch([](MuonSettings& s) { s.fp32_products = false; }), 5e-3}),
    [](const auto& test) { return test.param.name; });

// ---- Settings ----

TEST(Muon, ScalesDependOnTheShape) {
  EXPECT_DOUBLE_EQ(Muon({.extra_scale = 0.2}).scale(64, 16), 0.2 * 8);
  EXPECT_DOUBLE_EQ(Muon({.scale = MuonScale::kUnitRmsNorm}).scale(16, 64), 0.5);
  EXPECT_DOUBLE_EQ(Muon({.scale = MuonScale::kShapeScaling}).scale(64, 16), 2);
  EXPECT_DOUBLE_EQ(Muon({.scale = MuonScale::kShapeScaling}).scale(16, 64), 1);
}

TEST(Muon, CoefficientsRepeatAsASetOrEndWithTheLast) {
  const auto last = [](MuonCoefficients which, int steps) {
    const ops::NewtonSchulz iteration = Muon({.coefficients = which, .steps = steps}).iteration();
    EXPECT_EQ(std::ssize(iteration.steps), steps);
    return iteration.steps.back().a;
  };
  EXPECT_EQ(last(MuonCoefficients::kSimple, 7), 3.4445);
  EXPECT_EQ(last(MuonCoefficients::kQuintic, 6), 4.0848);
  EXPECT_EQ(last(MuonCoefficients::kQuintic, 10), 2.8366);
  EXPECT_EQ(last(MuonCoefficients::kPolarExpress, 10), 1.8750);
  EXPECT_EQ(last(MuonCoefficients::kAol, 4), 2.7215);
}

// Every set, applied as often as it may be, leads the singular values of a usual matrix close to 1.
TEST(Muon, EveryIterationOrthogonalizes) {
  const at::Tensor matrix = (at::arange(1, 24 * 40 + 1, at::kDouble) * 12.9898).sin().to(at::kFloat).view({1, 24, 40}) +
                            3 * at::eye(24, 40).unsqueeze(0);
  for (const auto& [which, steps] : {std::pair{MuonCoefficients::kSimple, 5},
                                     {MuonCoefficients::kQuintic, 5},
                                     {MuonCoefficients::kPolarExpress, 8},
                                     {MuonCoefficients::kAol, 8}}) {
    const Muon rule({.coefficients = which, .steps = steps, .fp32_products = true});
    const at::Tensor values = at::linalg_svdvals(ops::orthogonalize(matrix, rule.iteration()));
    EXPECT_GT(values.min().item<float>(), 0.6) << config::choice_name(which);
    EXPECT_LT(values.max().item<float>(), 1.4) << config::choice_name(which);
  }
}

TEST(Muon, WrongSettingsAreNamed) {
  const auto problem = [](const MuonSettings& settings, double offload = 0) {
    return error_of<ConfigError>(
        [&] { optim::OptimizerSettings{.muon = muon(settings), .offload_fraction = offload}.validate(); });
  };
  EXPECT_EQ(problem({}), "");
  expect_contains(problem({.momentum = 1}), "muon_momentum is 1; it must be at least 0 and below 1");
  expect_contains(problem({.extra_scale = 0}), "muon_extra_scale_factor is 0; it must be positive");
  expect_contains(problem({.steps = 0}), "muon_num_ns_steps is 0");
  expect_contains(problem({.steps = 6}), "with muon_coefficient_type quintic it must be a multiple of 5");
  expect_contains(problem({.coefficients = MuonCoefficients::kPolarExpress, .steps = 5}), "at least 8");
  expect_contains(problem({}, 0.5), "optimizer_cpu_offload");
}

// ---- Matrices in a buffer ----

TEST(MatrixPlan, GivesEachMatrixToOneOwnerOfAboutEqualWork) {
  std::vector<optim::MatrixCost> costs;
  for (int i = 0; i < 50; ++i) costs.push_back({.flop = 1.0 + i % 7, .elements = 100 + i % 3});
  for (const int owners : {1, 3, 8, 64})
    for (const int64_t limit : {1, 350, 1'000'000}) {
      std::multiset<int> seen;
      std::vector<double> loads(static_cast<size_t>(owners));
      for (const optim::MatrixRound& round : optim::plan_rounds(costs, owners, limit)) {
        ASSERT_EQ(std::ssize(round), owners);
        for (size_t owner = 0; owner < round.size(); ++owner) {
          int64_t elements = 0;
          for (const int matrix : round[owner]) {
            EXPECT_TRUE(elements == 0 || elements < limit);
            elements += costs[static_cast<size_t>(matrix)].elements;
            loads[owner] += costs[static_cast<size_t>(matrix)].flop;
            seen.insert(matrix);
          }
        }
      }
      EXPECT_EQ(seen.size(), costs.size());
      EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), costs.size());
      EXPECT_LE(std::ranges::max(loads) - std::ranges::min(loads), 7);
    }
  EXPECT_TRUE(optim::plan_rounds({}, 4, 10).empty());
}

optim::DdpSettings apart(bool distributed = false, int64_t bucket = 0) {
  optim::DdpSettings settings{.use_distributed_optimizer = distributed, .per_token_loss = true, .matrices_apart = true};
  if (bucket > 0) settings.overlap_grad_reduce = true, settings.bucket_size = optim::BucketSize::elements(bucket);
  return settings;
}

// Each tensor of a fused layer is one, and each of an expert; embeddings, norms and biases are not matrices.
TEST(Matrices, AreTheTensorsOfACheckpoint) {
  for (const char* name : {"qwen2", "qwen3_moe", "gpt2", "deepseek_v3"})
    run_training_ranks(golden_folder(name), {.ddp = apart()}, [&](const Rank&, TrainingRank& t) {
      std::set<std::string> expected, found;
      for (const nn::Parameter* p : t.models().parameters()) {
        if (!nn::is_matrix(p->spec)) {
          EXPECT_TRUE(p->value.dim() == 1 || p->spec.is_embedding_or_head || p->spec.use == nn::WeightUse::kLookup ||
                      p->spec.use == nn::WeightUse::kOther)
              << p->spec.name;
          continue;
        }
        for (const auto& part : p->sharded(p->grad.main_grad))
          part.local.fill_(static_cast<double>(expected.size() + 1)), expected.insert(part.name);
      }
      size_t all = 0;
      for (const auto& buffer : t.ddp().buffers()) {
        if (!nn::is_matrix(buffer->parameters()[0]->spec)) continue;
        for (const Matrix& m : optim::matrices_of(*buffer, false)) {
          ++all;
          // It covers one tensor, and nothing else.
          const at::Tensor covered = buffer->grads().narrow(0, m.begin, m.numel());
          EXPECT_EQ(covered.min().item<float>(), covered.max().item<float>()) << name;
          EXPECT_EQ(m.rows * m.columns, m.whole_rows * m.whole_columns);
          EXPECT_EQ(m.split, -1);
        }
      }
      EXPECT_EQ(all, expected.size()) << name;
    });
  run_training_ranks(golden_folder("qwen2"), {.ddp = apart()}, [&](const Rank&, TrainingRank& t) {
    for (const auto& buffer : t.ddp().buffers())
      if (nn::is_matrix(buffer->parameters()[0]->spec)) {
        const int64_t layers = t.models().config().num_layers;
        EXPECT_EQ(std::ssize(optim::matrices_of(*buffer, true)),
                  std::ssize(optim::matrices_of(*buffer, false)) - 2 * layers);
      }
  });
}

// The exchange alone: shards cut matrices anywhere, rounds are as small as one matrix, and more ranks than matrices.
TEST(MatrixUpdate, ExchangesMatricesInRounds) {
  const std::vector<std::vector<int64_t>> shapes{{7, 20}, {20, 7}, {7, 20}, {33, 5}, {1, 64}, {16, 16}};
  const auto rule = muon({.fp32_products = true});
  const auto numbers = [](int64_t n, size_t seed) {
    return (at::arange(1, n + 1, at::kDouble).square() * (1.37 + static_cast<double>(seed))).sin().to(at::kFloat);
  };
  std::vector<at::Tensor> expected;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor matrix = numbers(shapes[i][0] * shapes[i][1], i).view({1, shapes[i][0], shapes[i][1]});
    expected.push_back(ops::orthogonalize(matrix, rule->iteration())[0] * rule->scale(shapes[i][0], shapes[i][1]));
  }
  for (const int ranks : {1, 2, 3, 8})
    for (const int64_t round : {1, 200, 100'000}) {
      std::vector<at::Tensor> found(shapes.size());
      for (size_t i = 0; i < shapes.size(); ++i) found[i] = at::zeros(shapes[i]).view(-1);
      run_ranks(ranks, [&](const Rank& rank) {
        const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = ranks}));
        nn::ParameterSet set(at::kFloat, at::kCPU);
        std::vector<nn::Parameter*> parameters;
        for (size_t i = 0; i < shapes.size(); ++i)
          parameters.push_back(&nn::ParameterScope(set).add(
              {.name = fmt::format("w{}.weight", i), .use = nn::WeightUse::kRow}, shapes[i]));
        optim::DistributedDataParallel ddp(parameters, apart(true, 300), context);
        const optim::ParamBuffer& buffer = *ddp.buffers()[0];
        // Only the own shards hold numbers; the rest must not matter.
        buffer.grads().fill_(NAN);
        const at::Tensor whole = at::zeros_like(buffer.grads());
        for (size_t i = 0; i < shapes.size(); ++i) {
          const auto& item = buffer.layout().items[i];
          whole.narrow(0, item.begin, item.end - item.begin).copy_(numbers(item.end - item.begin, i));
        }
        for (int bucket = 0; bucket < std::ssize(buffer.layout().buckets); ++bucket)
          buffer.own(buffer.grads(), bucket).copy_(buffer.own(whole, bucket));
        optim::MatrixUpdate(rule, buffer, context, round).run();
        for (size_t i = 0; i < shapes.size(); ++i) {
          const auto& item = buffer.layout().items[i];
          const int64_t first = buffer.layout().shard_begin(item.bucket, buffer.shard_rank());
          const int64_t begin = std::max(item.begin, first);
          const int64_t end = std::min(item.end, first + buffer.layout().shard_numel(item.bucket));
          if (begin < end)
            found[i].narrow(0, begin - item.begin, end - begin).copy_(buffer.grads().narrow(0, begin, end - begin));
        }
      });
      for (size_t i = 0; i < shapes.size(); ++i)
        expect_close(found[i].view(shapes[i]), expected[i], fmt::format("matrix {} on {} ranks", i, ranks));
    }
}

// ---- Training ----

// SGD has the rest: AdamW would make numbers of normal size from gradients that are rounding errors, as those of biases
// of keys are, and layouts could not be compared.
TrainCase with_muon(TrainCase how, const MuonSettings& settings) {
  how.ddp.matrices_apart = true;
  how.optimizer.rule = std::make_shared<optim::Sgd>();
  how.optimizer.muon = muon(settings);
  how.steps = 3;
  how.lr = 3e-3;
  return how;
}

void expect_same_training(const TrainResult& actual, const TrainResult& expected, const std::string& name,
                          double tolerance = kClose) {
  SCOPED_TRACE(name);
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i)
    expect_close(actual.losses[i], expected.losses[i], fmt::format("loss {}", i), tolerance);
  for (const auto& [tensor, value] : expected.weights)
    expect_close(actual.weights.at(tensor), value, tensor, tolerance);
}

std::vector<TrainCase> data_parallel_layouts(int tp) {
  TrainCase instances{.tp = tp, .dp = 4, .instances = 2, .ddp = apart(true)};
  TrainCase overlapped{.tp = tp, .dp = 2, .ddp = apart(true, 3000), .overlap_param_gather = true};
  return {{.tp = tp, .dp = 2, .ddp = apart()},
          {.tp = tp, .dp = 2, .ddp = apart(true)},
          {.tp = tp, .dp = 4, .ddp = apart(true, 3000)},
          overlapped,
          instances};
}

class MuonLayouts : public ::testing::TestWithParam<MuonTpMode> {};

// With whole matrices, every layout is the run of one rank; with blocks, that of one rank per block.
TEST_P(MuonLayouts, GiveTheSameTraining) {
  for (const char* name : {"qwen2", "qwen3"}) {
    const auto folder = golden_folder(name);
    const TrainBatch batch = random_batch(4, 16, 256);
    const MuonSettings settings{.nesterov = true, .extra_scale = 0.2, .tp_mode = GetParam(), .fp32_products = true};
    const TrainResult alone = train(folder, batch, with_muon({}, settings));
    EXPECT_LT(alone.losses.back(), alone.losses.front());
    for (const TrainCase& layout : data_parallel_layouts(1))
      expect_same_training(train(folder, batch, with_muon(layout, settings)), alone, layout.name());
    const TrainResult blocks = train(folder, batch, with_muon({.tp = 2}, settings));
    if (GetParam() != MuonTpMode::kBlockwise)
      expect_same_training(blocks, alone, "tp 2");
    else
      EXPECT_NE(blocks.losses.back(), alone.losses.back()) << "a block is not the whole matrix";
    for (const TrainCase& layout : data_parallel_layouts(2))
      expect_same_training(train(folder, batch, with_muon(layout, settings)), blocks, layout.name());
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, MuonLayouts,
                         ::testing::Values(MuonTpMode::kBlockwise, MuonTpMode::kDuplicated, MuonTpMode::kDistributed),
                         [](const auto& test) { return std::string(config::choice_name(test.param)); });

// Query, key and value together are another matrix than each alone; also under tp, where each rank has rows of all.
TEST(MuonTraining, JoinsQueryKeyAndValueOnRequest) {
  const auto folder = golden_folder("qwen2");
  const TrainBatch batch = random_batch(4, 16, 256);
  MuonSettings settings{.tp_mode = MuonTpMode::kDuplicated, .fp32_products = true};
  const TrainResult split = train(folder, batch, with_muon({}, settings));
  settings.split_qkv = false;
  const TrainResult joined = train(folder, batch, with_muon({}, settings));
  EXPECT_NE(joined.losses.back(), split.losses.back());
  for (const TrainCase& layout : data_parallel_layouts(2))
    expect_same_training(train(folder, batch, with_muon(layout, settings)), joined, layout.name());
}

// bf16 products, 16-bit parameters and state in fewer bits: the same run whether or not ranks share the work.
TEST(MuonTraining, WorksInLowPrecision) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(4, 16, 512);
  const std::vector<optim::StateFormats> formats{{},
                                                 {.remainders = true, .states = {{"exp_avg", at::kBFloat16}}},
                                                 {.main = at::kHalf, .states = {{"exp_avg", at::kFloat8_e4m3fn}}}};
  for (const optim::StateFormats& format : formats)
    for (const auto grads : {at::kFloat, at::kBFloat16}) {
      const auto low = [&](TrainCase how) {
        how = with_muon(how, {.extra_scale = 0.2});
        how.options.dtype = at::kBFloat16;
        how.optimizer.formats = format;
        how.ddp.grad_dtype = grads;
        return how;
      };
      const TrainResult plain = train(folder, batch, low({.dp = 2, .ddp = apart()}));
      EXPECT_LT(plain.losses.back(), plain.losses.front());
      const TrainResult shared = train(folder, batch, low({.dp = 2, .ddp = apart(true, 3000)}));
      for (size_t i = 0; i < plain.losses.size(); ++i)
        expect_close(shared.losses[i], plain.losses[i], fmt::format("loss {}", i), 2e-3);
    }
}

// The norm has been clipped and the loss scale taken out before the momentum sees a gradient.
TEST(MuonTraining, TakesTheLossScaleOut) {
  const auto folder = golden_folder("llama");
  const TrainBatch batch = random_batch(2, 16, 512);
  std::vector<double> losses[2];
  for (const bool scaled : {false, true})
    run_training_ranks(folder, with_muon({.ddp = apart()}, {.fp32_products = true}), [&](const Rank&, TrainingRank& t) {
      if (scaled) t.scaler() = optim::GradScaler::constant(1024);
      for (int i = 0; i < 3; ++i) {
        losses[scaled].push_back(t.accumulate(batch));
        EXPECT_FALSE(t.optimizer().begins_steps());
        EXPECT_TRUE(t.step().updated);
      }
    });
  for (size_t i = 0; i < 3; ++i) expect_close(losses[1][i], losses[0][i], fmt::format("loss {}", i));
}

// ---- State ----

// Matrices have a momentum, the rest two moments, and another optimizer's state is refused.
TEST(MuonState, HasOneNumberPerElementOfAMatrix) {
  const TrainBatch batch = random_batch(2, 16, 512);
  TrainCase how = with_muon({.ddp = apart()}, {});
  how.optimizer.rule = std::make_shared<optim::AdamW>();
  MemorySource saved;
  std::string progress;
  run_training_ranks(golden_folder("llama"), how, [&](const Rank&, TrainingRank& t) {
    t.accumulate(batch), t.step();
    int64_t bytes = 0;
    for (const auto& buffer : t.ddp().buffers())
      bytes += buffer->layout().numel() * (nn::is_matrix(buffer->parameters()[0]->spec) ? 4 : 8);
    EXPECT_EQ(t.optimizer().state_bytes(false), bytes);
    saved.save(t.optimizer().sharded_state());
    progress = t.optimizer().progress_json();
    EXPECT_EQ(t.optimizer().state_prefixes(at::kFloat, true), std::vector<std::string>{"optimizer.exp_avg."});
    EXPECT_EQ(t.optimizer().state_prefixes(at::kBFloat16, false).size(), 3U);
  });
  expect_contains(progress, "\"muon\"");
  EXPECT_TRUE(saved.whole().contains("optimizer.exp_avg.layers.0.attention.q.weight"));
  EXPECT_FALSE(saved.whole().contains("optimizer.exp_avg_sq.layers.0.attention.q.weight"));
  EXPECT_TRUE(saved.whole().contains("optimizer.exp_avg_sq.final_norm.weight"));
  run_training_ranks(golden_folder("llama"), {}, [&](const Rank&, TrainingRank& t) {
    expect_contains(error_of<ConfigError>([&] { t.optimizer().load_state(saved, progress); }),
                    "\"muon\"; this run uses adam");
  });
}

TEST(MuonState, IsReadInAnyLayout) {
  const auto folder = golden_folder("qwen2");
  const TrainBatch batch = random_batch(4, 16, 256);
  const MuonSettings settings{.tp_mode = MuonTpMode::kDuplicated, .fp32_products = true};
  std::vector<TrainCase> layouts{with_muon({.ddp = apart()}, settings),
                                 with_muon({.tp = 2, .dp = 2, .ddp = apart(true, 3000)}, settings),
                                 with_muon({.dp = 4, .ddp = apart(true)}, settings)};
  for (TrainCase& layout : layouts) layout.weight_decay = 0;  // SGD's momentum would depend on the weights
  for (const TrainCase& from : layouts) {
    MemorySource saved, after;
    std::string progress;
    // The state after one step, and after a second step with gradients that any layout can be given.
    const auto second_step = [](TrainingRank& t) {
      for (const nn::Parameter* p : t.models().parameters()) {
        double seed = 1;
        for (const auto& part : p->sharded(p->grad.main_grad)) {
          const auto rows = at::arange(part.offset[0], part.offset[0] + part.local.size(0), at::kDouble);
          at::Tensor numbers = (rows * (seed += 0.7)).sin();
          if (part.local.dim() == 2)
            numbers = numbers.unsqueeze(1) *
                      at::arange(part.offset[1], part.offset[1] + part.local.size(1), at::kDouble).mul(0.3).cos();
          part.local.copy_(numbers);
        }
        p->grad.main_grad.mul_(1e-3);
      }
      EXPECT_TRUE(t.step().updated);
    };
    run_training_ranks(folder, from, [&](const Rank& rank, TrainingRank& t) {
      t.accumulate(batch), t.step();
      saved.save(t.optimizer().sharded_state());
      if (rank.rank == 0) progress = t.optimizer().progress_json();
      second_step(t);
      after.save(t.optimizer().sharded_state());
    });
    for (const TrainCase& to : layouts) {
      MemorySource continued;
      run_training_ranks(folder, to, [&](const Rank&, TrainingRank& t) {
        t.optimizer().load_state(saved, progress);
        second_step(t);
        continued.save(t.optimizer().sharded_state());
      });
      for (const auto& [name, tensor] : after.whole())
        expect_close(continued.whole().at(name), tensor, fmt::format("{} to {}: {}", from.name(), to.name(), name));
    }
  }
}

}  // namespace
}  // namespace megalith::testing
