// Generation: the cache changes nothing, and every layout says the same.
#include "megalith/inference/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "megalith/base/error.h"
#include "megalith/inference/sampling.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "tests/model/model_support.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

const std::vector<int64_t> kPrompt{5, 17, 3, 99, 42, 7};

// Without a cache: the whole text again for every token.
std::vector<int64_t> greedy_without_cache(const model::VirtualModels& models, int64_t count) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> text = kPrompt;
  for (int64_t i = 0; i < count; ++i) {
    const auto length = static_cast<int64_t>(text.size());
    const auto columns = models[0].forward(
        {.layout = ops::SequenceLayout::dense(1, length), .ids = at::tensor(text, at::kLong), .training = false});
    const auto logits = nn::all_gather_columns(columns, models.context().tp(), "logits");
    text.push_back(logits[length - 1].narrow(0, 0, models.config().vocab_size).argmax().item<int64_t>());
  }
  return {text.begin() + static_cast<int64_t>(kPrompt.size()), text.end()};
}

class Generate : public ::testing::TestWithParam<std::string> {};

TEST_P(Generate, CacheAndLayoutChangeNothing) {
  std::vector<int64_t> expected;
  for (const int tp : tp_sizes(golden_folder(GetParam()))) {
    run_model(golden_folder(GetParam()), {.tp = tp}, [&](const Rank& r, model::VirtualModels& models) {
      const auto text = inference::generate(models, kPrompt, {.max_new_tokens = 20});
      EXPECT_EQ(text, greedy_without_cache(models, 20));
      if (tp == 1) expected = text;
      EXPECT_EQ(text, expected) << "tp " << tp << " rank " << r.rank;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(, Generate, ::testing::ValuesIn(supported_golden_models()),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

TEST(Sampling, RanksDrawTheSameAndSeedsDiffer) {
  std::set<std::vector<int64_t>> texts;
  run_model(golden_folder("llama"), {.tp = 2}, [&](const Rank& r, model::VirtualModels& models) {
    for (const uint64_t seed : {1, 2}) {
      const auto text = inference::generate(models, kPrompt, {.temperature = 1, .max_new_tokens = 12, .seed = seed});
      EXPECT_EQ(text, inference::generate(models, kPrompt, {.temperature = 1, .max_new_tokens = 12, .seed = seed}));
      if (r.rank == 0) texts.insert(text);
    }
  });
  EXPECT_EQ(texts.size(), 2);
}

TEST(Sampling, StopsAtAStopIdAndWhenTold) {
  run_model(golden_folder("llama"), {}, [&](const Rank&, model::VirtualModels& models) {
    const auto free = inference::generate(models, kPrompt, {.max_new_tokens = 10});
    const auto stopped = inference::generate(models, kPrompt, {.max_new_tokens = 10, .stop_ids = {free[2]}});
    ASSERT_FALSE(stopped.empty());
    EXPECT_EQ(stopped.back(), free[2]);
    EXPECT_LE(stopped.size(), 3);
    int seen = 0;
    EXPECT_EQ(inference::generate(models, kPrompt, {.max_new_tokens = 10}, [&](int64_t) { return ++seen < 4; }).size(),
              4);
  });
}

TEST(Sampling, FrequenciesFollowTheLogits) {
  const at::Tensor logits = at::tensor({0.0, 1.0, 2.0, -1.0}, at::kFloat);
  const auto frequencies = [&](const inference::SamplingOptions& options) {
    std::mt19937_64 random(3);
    std::vector<double> counts(4, 0);
    for (int i = 0; i < 20000; ++i)
      counts[static_cast<size_t>(inference::sample(logits, options, random))] += 1.0 / 20000;
    return counts;
  };
  const at::Tensor p = logits.softmax(0);
  const auto all = frequencies({.temperature = 1});
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(all[static_cast<size_t>(i)], p[i].item<double>(), 0.015);
  const auto hot = frequencies({.temperature = 2});
  EXPECT_NEAR(hot[2], (logits / 2).softmax(0)[2].item<double>(), 0.015);
  const auto two = frequencies({.temperature = 1, .top_k = 2});
  EXPECT_EQ(two[0] + two[3], 0);
  EXPECT_NEAR(two[2], 1 / (1 + std::exp(-1.0)), 0.015);
  // 0.64 alone is less than 0.7, with the next (0.24) it is enough
  const auto nucleus = frequencies({.temperature = 1, .top_p = 0.7});
  EXPECT_EQ(nucleus[0] + nucleus[3], 0);
  EXPECT_GT(nucleus[1], 0.2);
  EXPECT_GT(frequencies({.temperature = 0})[2], 0.999999);
}

TEST(Sampling, BadOptionsAreNamed) {
  const auto error = [](const inference::SamplingOptions& options) -> std::string {
    try {
      options.validate();
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  expect_contains(error({.temperature = -1}), "temperature is -1");
  expect_contains(error({.top_k = -3}), "top_k is -3");
  expect_contains(error({.top_p = 0}), "top_p is 0");
  expect_contains(error({.max_new_tokens = 0}), "max_new_tokens is 0");
  run_model(golden_folder("gpt2"), {}, [&](const Rank&, model::VirtualModels& models) {
    EXPECT_THROW(inference::generate(models, {}, {}), ConfigError);
    EXPECT_THROW(inference::generate(models, kPrompt, {.max_new_tokens = 1000}), ConfigError);  // 64 learned positions
    EXPECT_THROW(inference::generate(models, {100000}, {.max_new_tokens = 2}), DataError);
  });
}

}  // namespace
}  // namespace megalith::testing
