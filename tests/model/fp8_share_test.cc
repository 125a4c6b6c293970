// The share of fp8 in the FLOPs of a step, against counts by hand.
#include "megalith/model/fp8/fp8_share.h"

#include "megalith/model/adapter.h"
#include "megalith/model/model_flops.h"
#include "tests/model/model_support.h"
#include "tests/support/expect.h"

namespace megalith::model {
namespace {

constexpr int64_t kShareLength = 32;

ModelOptions options_in_fp8(const ops::Fp8Recipe& recipe = {}) {
  ModelOptions options;
  options.fp8 = recipe;
  return options;
}

ModelConfig golden_config(const std::string& name) { return read_model_config(testing::golden_folder(name)); }

// Returns the share of the products called `what`; 0 if all of them are in fp8.
double share_of(const Fp8Share& share, const std::string& what) {
  for (const Fp8Share::Rest& rest : share.rest)
    if (rest.what == what) return rest.share;
  return 0;
}

void expect_whole(const Fp8Share& share) {
  double all = share.in_fp8;
  for (const Fp8Share::Rest& rest : share.rest) all += rest.share;
  EXPECT_NEAR(all, 1, 1e-12);
  EXPECT_TRUE(std::ranges::is_sorted(share.rest, std::greater<>(), &Fp8Share::Rest::share));
}

TEST(Fp8Share, CountsAsModelFlopsDoes) {
  const ModelConfig config = golden_config("llama");
  const double h = static_cast<double>(config.hidden_size), v = static_cast<double>(config.vocab_size);
  const double all = layout::model_flops(flops_shape(config), 1, kShareLength) / kShareLength;
  const double width = static_cast<double>(config.num_heads * config.head_dim);
  const double attention = 6 * kShareLength * width * static_cast<double>(config.num_layers);
  for (const auto& [tp, pp] : {std::pair(1, 1), std::pair(2, 1), std::pair(4, 2)}) {
    const Fp8Share share =
        fp8_share(config, options_in_fp8(), {.world_size = tp * pp, .tp = tp, .pp = pp}, kShareLength);
    expect_whole(share);
    EXPECT_EQ(share.rest.size(), 2U);
    EXPECT_NEAR(share_of(share, "head"), 6 * h * v / all, 1e-12);
    EXPECT_NEAR(share_of(share, "attention"), attention / all, 1e-12);
    EXPECT_NEAR(share.in_fp8, 1 - (6 * h * v + attention) / all, 1e-12);
  }
}

TEST(Fp8Share, CountsAHeadInFp8) {
  const ModelConfig config = golden_config("llama");
  const Fp8Share without = fp8_share(config, options_in_fp8(), {}, kShareLength);
  ModelOptions options = options_in_fp8();
  options.fp8_head = true;
  EXPECT_EQ(fp8_share(config, options, {}, kShareLength).in_fp8, without.in_fp8) << "the loss is not in chunks";
  options.loss_chunk = 16;
  options.vocab_multiple = 16;
  const Fp8Share with = fp8_share(config, options, {}, kShareLength);
  expect_whole(with);
  EXPECT_NEAR(with.in_fp8, without.in_fp8 + share_of(without, "head"), 1e-12);
  EXPECT_EQ(with.rest.size(), 1U);
  options.fp8->weight_gradients = false;
  EXPECT_NEAR(fp8_share(config, options, {}, kShareLength).in_fp8, with.in_fp8 * 2 / 3, 1e-12);
  ModelConfig odd = config;
  odd.vocab_size = 257;
  options.vocab_multiple = 1;
  const Fp8Share refused = fp8_share(odd, options, {}, kShareLength);
  const auto head = std::ranges::find(refused.rest, "head", &Fp8Share::Rest::what);
  ASSERT_NE(head, refused.rest.end());
  EXPECT_TRUE(head->why.starts_with("its sizes on a rank, 257 x")) << head->why;
}

TEST(Fp8Share, NamesWidthsThatDoNotFit) {
  ModelConfig config = golden_config("llama");
  config.mlp_width = 48;
  EXPECT_EQ(fp8_share(config, options_in_fp8(), {}, kShareLength).rest.size(), 2U);
  const Fp8Share halves = fp8_share(config, options_in_fp8(), {.world_size = 2, .tp = 2}, kShareLength);
  expect_whole(halves);
  ASSERT_EQ(halves.rest.size(), 3U);
  const double one = static_cast<double>(config.mlp_width * config.hidden_size * config.num_layers);
  const double all = layout::model_flops(flops_shape(config), 1, kShareLength) / kShareLength;
  EXPECT_NEAR(share_of(halves, "layers.*.mlp.down.weight"), 6 * one / all, 1e-12);
  testing::expect_contains(text_of(halves.rest[1]),
                           " % layers.*.mlp.down.weight: its sizes on a rank, 64 x 24, are not multiples of 16");
  // No width of so small a model is a multiple of 512.
  EXPECT_EQ(fp8_share(config, options_in_fp8({.scaling = ops::Fp8Scaling::kBlocks}), {}, kShareLength).in_fp8, 0);
}

TEST(Fp8Share, WithoutWeightGradients) {
  const ModelConfig config = golden_config("llama");
  const Fp8Share with = fp8_share(config, options_in_fp8(), {}, kShareLength),
                 without = fp8_share(config, options_in_fp8({.weight_gradients = false}), {}, kShareLength);
  expect_whole(without);
  EXPECT_NEAR(without.in_fp8, with.in_fp8 * 2 / 3, 1e-12);
  EXPECT_NEAR(share_of(without, "weight gradients"), with.in_fp8 / 3, 1e-12);
}

TEST(Fp8Share, FirstAndLastLayer) {
  ModelOptions options = options_in_fp8();
  const ModelConfig config = golden_config("llama");  // 4 layers
  const double all = fp8_share(config, options, {}, kShareLength).in_fp8;
  options.fp8_inside_only = true;
  const Fp8Share inside = fp8_share(config, options, {}, kShareLength);
  EXPECT_NEAR(inside.in_fp8, all / 2, 1e-12);
  EXPECT_NEAR(share_of(inside, "first and last layer"), all / 2, 1e-12);
}

// Two of the three products of an expert are in fp8, with every recipe.
TEST(Fp8Share, Experts) {
  const ModelConfig config = golden_config("qwen3_moe");
  const double all = layout::model_flops(flops_shape(config), 1, kShareLength) / kShareLength;
  const auto& moe = config.moe.value();
  const double multiplications =
      static_cast<double>(3 * moe.router.topk * moe.width * config.hidden_size * config.num_layers);
  for (const ops::Fp8Scaling scaling :
       {ops::Fp8Scaling::kTensor, ops::Fp8Scaling::kDelayed, ops::Fp8Scaling::kBlocks}) {
    ModelOptions options = options_in_fp8({.scaling = scaling});
    const Fp8Share plain = fp8_share(config, options, {}, kShareLength);
    const double experts = share_of(plain, "experts");
    EXPECT_NEAR(experts / (6 * multiplications / all), 1, 0.03) << "model_flops counts no routers";
    options.moe.fp8 = true;
    const Fp8Share share = fp8_share(config, options, {}, kShareLength);
    expect_whole(share);
    EXPECT_NEAR(share_of(share, "weight gradients of experts"), experts / 3, 1e-12);
    EXPECT_NEAR(share.in_fp8, plain.in_fp8 + experts * 2 / 3, 1e-12);
    EXPECT_EQ(share_of(share, "experts"), 0);
  }
  ModelConfig narrow = config;
  narrow.moe->width = 24;
  ModelOptions wanted = options_in_fp8();
  wanted.moe.fp8 = true;
  const Fp8Share refused = fp8_share(narrow, wanted, {}, kShareLength);
  const auto experts = std::ranges::find(refused.rest, "experts", &Fp8Share::Rest::what);
  ASSERT_NE(experts, refused.rest.end());
  testing::expect_contains(experts->why, " x 24, are not multiples of 16");
}

// Frozen weights have no gradient; adapters do.
TEST(Fp8Share, Adapters) {
  const ModelConfig config = golden_config("llama");
  ModelOptions options = options_in_fp8();
  peft::AdapterConfig adapter;
  adapter.rank = 4;
  adapter.alpha = 8;
  adapter.target_modules = {"all"};
  options.adapter = resolve_targets(adapter, config);
  double weights = 0, low_rank = 0;
  const auto add = [&](double out, double in) {
    weights += out * in;
    low_rank += 4 * (out + in);
  };
  for (const double out : {64.0, 32.0, 32.0, 64.0}) add(out, 64);  // query, key, value, output
  for (const double out : {128.0, 128.0}) add(out, 64);            // gate, up
  add(64, 128);
  const double layers = 4, head = 4 * 64 * 512, attention = 6 * kShareLength * 64 * layers;
  const double all = layers * (4 * weights + 6 * low_rank) + head + attention;
  for (const int tp : {1, 2}) {
    const Fp8Share share = fp8_share(config, options, {.world_size = tp, .tp = tp}, kShareLength);
    expect_whole(share);
    EXPECT_NEAR(share.in_fp8, layers * 4 * weights / all, 1e-12) << tp;
    EXPECT_NEAR(share_of(share, "adapters"), layers * 6 * low_rank / all, 1e-12) << tp;
  }
}

TEST(Fp8Share, EveryFamily) {
  for (const std::string& name : testing::supported_golden_models()) {
    SCOPED_TRACE(name);
    const ModelConfig config = golden_config(name);
    const Fp8Share share = fp8_share(config, options_in_fp8(), {}, kShareLength);
    expect_whole(share);
    EXPECT_GT(share.in_fp8, 0.05);
    EXPECT_GT(share_of(share, "head"), 0);
    EXPECT_EQ(share_of(share, "routers") > 0, config.moe.has_value());
    EXPECT_EQ(share_of(share, "products of states") > 0, config.delta_net.has_value());
  }
}

TEST(Fp8Share, Percents) {
  EXPECT_EQ(percent_text(0.712), "71.2 %");
  EXPECT_EQ(percent_text(0.0004), "< 0.1 %");
  EXPECT_EQ(percent_text(0), "0.0 %");
}

}  // namespace
}  // namespace megalith::model
