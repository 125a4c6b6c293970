// Scores and texts of every layout against one rank: stages, virtual stages, replicas, experts, slices of tokens.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/inference/generate.h"
#include "megalith/inference/score.h"
#include "megalith/inference/stage_passes.h"
#include "megalith/model/adapter.h"
#include "tests/model/model_support.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

struct InferenceLayout {
  int tp = 1, pp = 1, cp = 1, dp = 1, ep = 1;
  std::optional<int> vpp;
  bool sequence_parallel = false;  // used where the test asks for it (split_tokens)

  int ranks() const { return tp * pp * cp * dp; }
  std::string name() const {
    return fmt::format("tp {} pp {} vpp {} cp {} dp {} ep {}{}", tp, pp, vpp.value_or(1), cp, dp, ep,
                       sequence_parallel ? " sp" : "");
  }
};

using Body = std::function<void(const Rank&, model::VirtualModels&)>;

void run_inference(const std::string& name, const InferenceLayout& how, bool split_tokens, const Body& body,
                   const std::filesystem::path& adapter = {}) {
  const std::filesystem::path folder = golden_folder(name);
  const model::ModelConfig config = model::read_model_config(folder);
  run_ranks(how.ranks(), [&](const Rank& r) {
    parallel::ParallelContext context(
        r.world, layout::RankGrid({.world_size = r.size, .tp = how.tp, .pp = how.pp, .cp = how.cp, .ep = how.ep}));
    context.rng().seed(layout::seeds_for_base(1, context.place().tp_rank, 0, 0));
    layout::SplitRequest stages;
    stages.vpp = how.vpp;
    model::ModelOptions options;
    options.sequence_parallel = how.sequence_parallel && split_tokens;
    if (!adapter.empty()) options.adapter = model::adapter_config({.trained = adapter}, config);
    model::VirtualModels models(config, options, model::chunk_places(stages, config, context), context);
    model::load_weights(models, folder, config, 1);
    if (!adapter.empty()) model::load_adapter(models, adapter);
    body(r, models);
  });
}

// Five texts of different lengths, two of them of one prompt.
std::vector<inference::TextRequest> requests() {
  return {{{5, 17, 3, 99, 42, 7}, 0}, {{8}, 1}, {{200, 3, 3, 1, 9, 11, 60, 61, 4, 30, 2}, 2}, {{8}, 3}, {{77, 12}, 4}};
}

using Texts = std::vector<std::vector<int64_t>>;

// The texts as every rank returns them; checks that rank 0 reads the same, in order.
Texts texts_of(const std::string& name, const InferenceLayout& how, const inference::SamplingOptions& options,
               const std::filesystem::path& adapter = {}, bool split_tokens = false) {
  SCOPED_TRACE(name + ", " + how.name());
  std::mutex mutex;
  Texts first, read;
  run_inference(
      name, how, split_tokens,
      [&](const Rank& r, model::VirtualModels& models) {
        std::vector<int64_t> current;
        const Texts texts = inference::generate_texts(models, requests(), options,
                                                      {.on_token =
                                                           [&](size_t text, int64_t id) {
                                                             EXPECT_EQ(r.rank, 0);
                                                             EXPECT_EQ(text, read.size());
                                                             current.push_back(id);
                                                           },
                                                       .on_end = [&](size_t) { read.push_back(std::move(current)); }});
        const std::lock_guard lock(mutex);
        if (first.empty()) first = texts;
        EXPECT_EQ(texts, first) << "rank " << r.rank;
      },
      adapter);
  EXPECT_EQ(read, first);
  return first;
}

// Layouts that every family takes; experts and slices of tokens are added where the model has or allows them.
std::vector<InferenceLayout> layouts_of(const std::string& name) {
  std::vector<InferenceLayout> layouts{{.tp = 2, .sequence_parallel = true},
                                       {.pp = 2},
                                       {.pp = 4},
                                       {.pp = 2, .vpp = 2},
                                       {.dp = 3},
                                       {.dp = 8},  // more than texts and rows
                                       {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true}};
  const model::ModelConfig config = model::read_model_config(golden_folder(name));
  if (!config.delta_net) {
    layouts.push_back({.cp = 2});
    layouts.push_back({.pp = 2, .cp = 2});
  }
  if (config.moe) {
    layouts.push_back({.dp = 2, .ep = 2});
    layouts.push_back({.pp = 2, .dp = 2, .ep = 2});
    layouts.push_back({.pp = 2, .dp = 2, .ep = 2, .vpp = 2});
    layouts.push_back({.tp = 2, .dp = 2, .ep = 2, .sequence_parallel = true});
  }
  return layouts;
}

class InferenceLayouts : public ::testing::TestWithParam<std::string> {};

TEST_P(InferenceLayouts, TextsAreThoseOfOneRank) {
  // Warm enough that a wrong state of the random numbers shows.
  inference::SamplingOptions options{.temperature = 1.2, .max_new_tokens = 9};
  const Texts free = texts_of(GetParam(), {}, options);
  // Texts end on different steps: at the fourth token of one, somewhere in others.
  options.stop_ids = {free[0][3], free[2][6], free[4][1]};
  const Texts expected = texts_of(GetParam(), {}, options);
  EXPECT_LT(expected[4].size(), expected[2].size());
  EXPECT_NE(expected[1], expected[3]) << "texts of one prompt";
  for (const InferenceLayout& how : layouts_of(GetParam()))
    for (const bool split_tokens : {false, true}) {
      if (split_tokens && !how.sequence_parallel) continue;
      EXPECT_EQ(texts_of(GetParam(), how, options, {}, split_tokens), expected) << how.name() << split_tokens;
    }
}

TEST_P(InferenceLayouts, ScoresAreThoseOfOneRank) {
  const GoldenModel golden = read_golden_model(GetParam());
  // More rows than one group of micro-batches of a pipeline takes, and not a multiple of anything.
  const auto repeated = [](const at::Tensor& t) { return t.repeat({5, 1}).narrow(0, 0, 5 * t.size(0) - 1); };
  const inference::ScoreBatch batch{repeated(golden.input_ids), repeated(golden.attention_mask),
                                    repeated(golden.labels)};
  const auto scores = [&](const InferenceLayout& how) {
    SCOPED_TRACE(how.name());
    const TempFolder temp;
    run_inference(GetParam(), how, /*split_tokens=*/true, [&](const Rank&, model::VirtualModels& models) {
      const auto total = inference::score_to_file(models, batch, temp / "out", {.rows = 1, .logits = true});
      EXPECT_NEAR(total.loss, golden.loss, 0.1);  // on every rank
    });
    const hf::SafetensorsFile file(temp / "out");
    return std::vector<at::Tensor>{file.tensor("token_losses").clone(), file.tensor("logits").clone(),
                                   file.tensor("loss").clone()};
  };
  const std::vector<at::Tensor> expected = scores({});
  for (const InferenceLayout& how : layouts_of(GetParam())) {
    const std::vector<at::Tensor> actual = scores(how);
    for (size_t i = 0; i < expected.size(); ++i) {
      // Relative to losses, which are above 1; logits go through 0.
      const double size = std::max(1.0, expected[i].abs().max().item<double>());
      EXPECT_LT((actual[i] - expected[i]).abs().max().item<double>(), (i == 1 ? 1e-5 : 1e-6) * size)
          << how.name() << ", " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, InferenceLayouts, ::testing::Values("llama", "gpt2", "mixtral", "deepseek_v3", "qwen3_next"),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

TEST(InferenceLayout, AnAdapterIsOnEveryStage) {
  const std::filesystem::path adapter = golden_folder("lora") / "llama_r8";
  const inference::SamplingOptions options{.max_new_tokens = 6};
  const Texts expected = texts_of("llama", {}, options, adapter);
  EXPECT_NE(expected, texts_of("llama", {}, options));
  for (const InferenceLayout& how :
       {InferenceLayout{.pp = 2}, InferenceLayout{.tp = 2, .pp = 2}, InferenceLayout{.dp = 2}})
    EXPECT_EQ(texts_of("llama", how, options, adapter), expected) << how.name();
}

// Every rank says so by itself: none waits for one that has left.
TEST(InferenceLayout, BadRequestsAreRefusedOnEveryRank) {
  run_inference("gpt2", {.pp = 2}, false, [](const Rank&, model::VirtualModels& models) {
    const auto generate = [&](std::vector<int64_t> prompt, int64_t count) {
      const inference::TextRequest request{std::move(prompt)};
      inference::generate_texts(models, {&request, 1}, {.max_new_tokens = count});
    };
    EXPECT_THROW(generate({}, 2), ConfigError);
    EXPECT_THROW(generate({1, 2}, 63), ConfigError);  // 64 learned positions
    EXPECT_THROW(generate({100000}, 2), DataError);
    EXPECT_THROW(inference::score_rows(models, {at::full({1, 4}, 100000, at::kLong), {}, {}}, false), DataError);
    EXPECT_TRUE(inference::predicts_tokens(models));
  });
}

// A stage that fails ends the others, which wait for its hidden states or for the next token.
TEST(InferenceLayout, AFailureOfOneStageEndsAll) {
  for (const int failing : {0, 1}) {
    std::atomic<int> ended = 0;
    EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
        run_inference("llama", {.pp = 2}, false,
                      [&](const Rank& r, model::VirtualModels& models) {
                        try {
                          inference::generate(models, {1, 2}, {.max_new_tokens = 8}, [&](int64_t) {
                            check<DataError>(r.rank != failing, "this rank is out of order");
                            return true;
                          });
                        } catch (...) {
                          ++ended;
                          throw;
                        }
                      }),
        "this rank is out of order");
    EXPECT_EQ(ended, 2);
  }
}

}  // namespace
}  // namespace megalith::testing
