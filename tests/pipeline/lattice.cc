#include "tests/pipeline/lattice.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

namespace megalith::testing {

using layout::ScheduleKind;

ReferenceConfig small_config(int variant) {
  ReferenceConfig config = ReferenceConfig::of_family(variant == 0 ? "llama" : variant == 1 ? "qwen2" : "gpt2");
  config.num_layers = 8;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_heads = 4;
  config.num_kv_heads = variant == 2 ? 4 : 2;
  config.head_dim = 4;
  config.vocab_size = 48;
  config.tied = variant != 0;
  if (variant == 2) config.intermediate_size = 4 * config.hidden_size;
  return config;
}

std::string LatticePoint::name() const {
  return fmt::format("{}, {} micro-batches{}, model {}{}", how.name(), microbatches,
                     unequal ? " of unequal lengths" : "", variant,
                     how.options.recompute.layers != model::RecomputePlan::Layers::kNone ? ", full recompute"
                     : how.options.recompute.core_attention                              ? ", selective recompute"
                                                                                         : "");
}

std::vector<Lengths> LatticePoint::data() const {
  const int count = microbatches * how.dp;
  return unequal ? unequal_microbatches(count, 5) : equal_microbatches(count, 2, 6);
}

namespace {

// The options that a point gets beside its place in the lattice, by its number.
void vary(LatticePoint& point, size_t number) {
  PipelineCase& how = point.how;
  point.variant = static_cast<int>(number % kSmallConfigs);
  point.unequal = number % 2 == 1;
  how.sequence_parallel = how.tp > 1 && number % 4 < 2;
  how.engine.overlap = number % 5 < 3;
  how.ddp.overlap_grad_reduce = number % 7 < 3;
  if (number % 6 == 4) how.options.recompute = {.layers = model::RecomputePlan::Layers::kUniform, .num_layers = 1};
  if (number % 6 == 5) how.options.recompute = {.core_attention = true, .mlp = true, .norms = true};
}

std::optional<int> vpp_of(ScheduleKind kind) {
  return kind == ScheduleKind::kInterleaved ? std::optional(2) : std::nullopt;
}

layout::PipelineShape shape_of(const LatticePoint& point) {
  return {.kind = point.how.kind,
          .pp = point.how.pp,
          .chunks = point.how.chunks(),
          .microbatches = point.microbatches,
          .group_size = point.how.group_size};
}

LatticePoint random_point(uint64_t seed, ReferenceConfig* config) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int first, int last) {
    return first + static_cast<int>(random() % static_cast<uint64_t>(last - first + 1));
  };
  for (;;) {
    LatticePoint point;
    point.how.pp = pick(1, 5);
    point.how.tp = pick(0, 3) == 0 ? 2 : 1;
    point.how.dp = pick(0, 3) == 0 ? 2 : 1;
    point.microbatches = pick(1, 10);
    const int kind = pick(0, 2);
    point.how.kind = point.how.pp == 1 ? ScheduleKind::kNone
                     : kind == 0       ? ScheduleKind::kOneFOneB
                     : kind == 1       ? ScheduleKind::kInterleaved
                                       : ScheduleKind::kZeroBubble;
    if (point.how.kind == ScheduleKind::kInterleaved) {
      point.how.pipeline.vpp = pick(2, 3);
      if (pick(0, 1) == 0) point.how.group_size = pick(point.how.pp, 2 * point.how.pp);
    }
    if (!problems(shape_of(point)).empty()) continue;
    vary(point, random() % 420);
    point.unequal = pick(0, 1) == 0;
    *config = small_config(point.variant);
    config->num_layers = pick(point.how.pp * point.how.chunks(), point.how.pp * point.how.chunks() + 4);
    point.how.gloo = pick(0, 9) == 0 && point.how.ranks() <= 4;
    return point;
  }
}

}  // namespace

std::vector<LatticePoint> lattice(const std::vector<int>& pps, const std::vector<int>& tps, const std::vector<int>& dps,
                                  const std::vector<int>& counts) {
  std::vector<LatticePoint> points;
  size_t number = 0;
  for (const int pp : pps)
    for (const auto kind : {ScheduleKind::kOneFOneB, ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble})
      for (const int tp : tps)
        for (const int dp : dps)
          for (const int count : counts) {
            LatticePoint point;
            point.microbatches = count;
            point.how.tp = tp, point.how.pp = pp, point.how.dp = dp;
            point.how.kind = kind;
            point.how.pipeline.vpp = vpp_of(kind);
            if (kind == ScheduleKind::kInterleaved && count % 3 == 0 && count > pp) point.how.group_size = pp + 1;
            if (!problems(shape_of(point)).empty()) point.how.group_size.reset();
            if (!problems(shape_of(point)).empty()) continue;  // tested as refused elsewhere
            vary(point, number++);
            points.push_back(point);
          }
  return points;
}

void expect_parity(const std::vector<LatticePoint>& points) {
  std::map<int, std::unique_ptr<SmallModel>> models;
  std::map<std::pair<int, std::vector<Lengths>>, SmallModel::Step> expected;
  for (const LatticePoint& point : points) {
    auto& model = models[point.variant];
    if (!model) model = std::make_unique<SmallModel>(small_config(point.variant));
    const auto data = point.data();
    const auto [found, fresh] = expected.try_emplace({point.variant, data});
    if (fresh) found->second = model->reference(data);
    expect_same_step(model->run(data, point.how), found->second, point.name());
    if (::testing::Test::HasFailure()) return;
  }
}

void expect_random_parity(uint64_t first_seed, int count) {
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(count); ++seed) {
    ReferenceConfig config;
    const LatticePoint point = random_point(seed, &config);
    const SmallModel model(config);
    const auto data = point.data();
    expect_same_step(model.run(data, point.how), model.reference(data),
                     fmt::format("seed {}: {} layers, {}", seed, config.num_layers, point.name()));
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace megalith::testing
