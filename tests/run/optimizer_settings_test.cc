#include "megalith/run/resolve/optimizer_settings.h"

#include <gtest/gtest.h>

#include <limits>

#include "megalith/base/error.h"
#include "megalith/config/optimizer_config.h"
#include "tests/support/expect.h"

namespace megalith::run {
namespace {

using config::PrecisionConfig;
using optim::BucketSize;
using testing::error_of;
using testing::expect_contains;

TEST(MakeRule, EveryNameOfTheOptionHasOne) {
  for (const auto& [kind, name] : config::EnumNames<config::OptimizerKind>::kNames) {
    config::OptimizerConfig options;
    options.optimizer = kind;
    const optim::OptimizerSettings settings = optimizer_settings(options);
    EXPECT_EQ(settings.name(), name);
    EXPECT_EQ(settings.muon != nullptr, kind == config::OptimizerKind::kMuon);
    EXPECT_NO_THROW(settings.validate());
  }
}

TEST(MakeRule, SettingsReachTheRule) {
  config::OptimizerConfig options;
  options.adam_beta2 = 2;
  expect_contains(error_of<ConfigError>([&] { optimizer_settings(options).validate(); }), "adam_beta2 is 2");
  options = {};
  options.optimizer = config::OptimizerKind::kSgd;
  options.sgd_momentum = -1;
  expect_contains(error_of<ConfigError>([&] { optimizer_settings(options).validate(); }), "sgd_momentum is -1");
  options = {};
  options.optimizer = config::OptimizerKind::kLion;
  options.lion_beta2 = 1;
  expect_contains(error_of<ConfigError>([&] { optimizer_settings(options).validate(); }), "lion_beta2 is 1");
}

TEST(MuonSettings, FollowTheOptions) {
  config::TrainingArguments args;
  args.optimizer.optimizer = config::OptimizerKind::kMuon;
  EXPECT_EQ(optimizer_settings(args.optimizer, args.muon).rule->name(), "adam");
  EXPECT_TRUE(ddp_settings(args).matrices_apart);
  args.muon = {.momentum = 0.9,
               .nesterov = true,
               .scale_mode = config::MuonScale::kUnitRmsNorm,
               .extra_scale_factor = 0.3,
               .coefficient_type = config::MuonCoefficients::kAol,
               .num_ns_steps = 8,
               .fp32_matmul_prec = "high",
               .tp_mode = config::MuonTpMode::kDistributed,
               .split_qkv = false,
               .scalar_optimizer = config::ScalarOptimizer::kLion};
  const optim::OptimizerSettings settings = optimizer_settings(args.optimizer, args.muon);
  EXPECT_EQ(settings.rule->name(), "lion");
  const optim::MuonSettings& muon = settings.muon->settings();
  EXPECT_TRUE(muon.momentum == 0.9 && muon.nesterov && muon.extra_scale == 0.3 && muon.steps == 8);
  EXPECT_TRUE(muon.fp32_products && !muon.split_qkv);
  EXPECT_EQ(muon.scale, config::MuonScale::kUnitRmsNorm);
  EXPECT_EQ(muon.coefficients, config::MuonCoefficients::kAol);
  EXPECT_EQ(muon.tp_mode, config::MuonTpMode::kDistributed);
  args.muon.num_ns_steps = 5;
  expect_contains(error_of<ConfigError>([&] { optimizer_settings(args.optimizer, args.muon).validate(); }),
                  "muon_num_ns_steps is 5; with muon_coefficient_type aol it must be a multiple of 4");
  args.optimizer.optimizer = config::OptimizerKind::kAdam;
  EXPECT_FALSE(ddp_settings(args).matrices_apart);
}

TEST(OptimizerSettings, AFractionIsOffloadedOnlyWhenAskedFor) {
  config::OptimizerConfig options;
  options.offload_fraction = 0.5;
  EXPECT_EQ(optimizer_settings(options).offload_fraction, 0);
  options.cpu_offload = true;
  EXPECT_EQ(optimizer_settings(options).offload_fraction, 0.5);
}

TEST(DdpSettings, FollowTheOptions) {
  config::TrainingArguments args;
  EXPECT_EQ(ddp_settings(args).bucket_size, BucketSize{});
  EXPECT_FALSE(ddp_settings(args).bucketing);
  EXPECT_TRUE(ddp_settings(args).check_for_nan);
  args.ddp = {.overlap_grad_reduce = true, .bucket_size = 77, .calculate_per_token_loss = true};
  args.optimizer.use_distributed_optimizer = true;
  args.precision.fp16 = true;
  const optim::DdpSettings settings = ddp_settings(args);
  EXPECT_TRUE(settings.bucketing && settings.per_token_loss && settings.use_distributed_optimizer);
  EXPECT_FALSE(settings.check_for_nan);
  EXPECT_EQ(settings.bucket_size, BucketSize::elements(77));
  args.ddp = {.num_buckets = 3};
  args.precision = {.bf16 = true, .grad_reduce_in_bf16 = true};
  EXPECT_EQ(ddp_settings(args).bucket_size, BucketSize::count(3));
  EXPECT_EQ(ddp_settings(args).grad_dtype, at::kBFloat16);
}

TEST(GradScalerOfOptions, PrecisionDecides) {
  PrecisionConfig precision;
  precision.bf16 = true;
  EXPECT_FALSE(grad_scaler(precision).is_dynamic());
  EXPECT_EQ(grad_scaler(precision).scale(), 1);
  precision = {};
  precision.fp16 = true;
  EXPECT_TRUE(grad_scaler(precision).is_dynamic());
  EXPECT_EQ(grad_scaler(precision).scale(), 4294967296.0F);
  precision.loss_scale = 128;
  EXPECT_FALSE(grad_scaler(precision).is_dynamic());
  EXPECT_EQ(grad_scaler(precision).inverse_scale(), 1.0F / 128);
}

TEST(GradScalerOfOptions, OptionsAreRefusedByName) {
  const auto refused = [](auto change) {
    PrecisionConfig precision;
    precision.fp16 = true;
    change(precision);
    return error_of<ConfigError>([&] { grad_scaler(precision); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_contains(refused([](auto& p) { p.loss_scale = 0; }), "loss_scale is 0");
  expect_contains(refused([](auto& p) { p.loss_scale = 1e39; }), "loss_scale is 1e+39");
  expect_contains(refused([&](auto& p) { p.initial_loss_scale = nan; }), "initial_loss_scale is nan");
  expect_contains(refused([](auto& p) { p.min_loss_scale = 1e30; }), "min_loss_scale is 1e+30, more than");
  expect_contains(refused([](auto& p) { p.loss_scale_window = 2.5; }), "loss_scale_window is 2.5");
  expect_contains(refused([](auto& p) { p.hysteresis = 0; }), "hysteresis is 0");
}

}  // namespace
}  // namespace megalith::run
