// Evaluation counts every sample once, whatever the layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/train/evaluation.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/reference_model.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

struct Expected {
  double loss = 0, accuracy = 0;
};

// Sample by sample, with the model in plain ATen.
Expected plain_evaluation(const std::filesystem::path& folder, const std::vector<data::Sequence>& samples) {
  const at::NoGradGuard no_grad;
  const ReferenceModel model = ReferenceModel::from_folder(folder);
  double sum = 0, right = 0;
  int64_t tokens = 0;
  for (const data::Sequence& s : samples) {
    const at::Tensor ids = at::tensor(std::vector<int64_t>(s.ids.begin(), s.ids.end())).unsqueeze(0);
    const at::Tensor labels = at::tensor(std::vector<int64_t>(s.labels.begin(), s.labels.end())).unsqueeze(0);
    const at::Tensor logits = model.forward(ids).logits;
    sum += reference_token_losses(logits, labels).sum().item<double>();
    const int64_t last = labels.size(1) - 1;
    right += logits.argmax(-1).narrow(1, 0, last).eq(labels.narrow(1, 1, last)).sum().item<double>();
    tokens += reference_label_count(labels);
  }
  return {sum / static_cast<double>(tokens), right / static_cast<double>(tokens)};
}

// Some labels are what the model predicts, so that the accuracy is not 0.
std::vector<data::Sequence> predictable(const std::filesystem::path& folder, int64_t count) {
  const at::NoGradGuard no_grad;
  const ReferenceModel model = ReferenceModel::from_folder(folder);
  std::vector<data::Sequence> samples = random_sequences(count, model.config().vocab_size, 5);
  for (data::Sequence& s : samples) {
    const at::Tensor ids = at::tensor(std::vector<int64_t>(s.ids.begin(), s.ids.end())).unsqueeze(0);
    const at::Tensor best = model.forward(ids).logits.argmax(-1).squeeze(0);
    for (size_t i = 1; i < s.labels.size(); i += 2)
      if (s.labels[i] != data::kIgnoredLabel)
        s.labels[i] = static_cast<int32_t>(best[static_cast<int64_t>(i) - 1].item<int64_t>());
  }
  return samples;
}

TEST(Evaluation, CountsEverySampleOnce) {
  const auto folder = golden_folder("llama");
  const auto samples = predictable(folder, 7);
  const Expected expected = plain_evaluation(folder, samples);
  ASSERT_GT(expected.accuracy, 0.1);
  const std::vector<TrainerCase> layouts{{.dp = 1},
                                         {.dp = 2},
                                         {.dp = 3},
                                         {.dp = 4},
                                         {.tp = 2},
                                         {.tp = 2, .dp = 2},
                                         {.pp = 2},
                                         {.pp = 2, .dp = 2},
                                         {.tp = 2, .pp = 2},
                                         {.pp = 2, .vpp = 2},
                                         {.pp = 2, .dp = 2, .vpp = 2}};
  for (const TrainerCase& layout : layouts)
    for (const int size : {1, 2, 3, 8})
      for (const int accumulation : {1, 3}) {
        TrainerCase how = layout;
        how.name = fmt::format("tp {} pp {} vpp {} dp {} batch {} group {}", how.tp, how.pp, how.vpp.value_or(1),
                               how.dp, size, accumulation);
        how.args.parallel.sequence_parallel = how.tp > 1;
        how.args.batch.eval_micro_batch_size = size;
        how.args.batch.gradient_accumulation_steps = accumulation;
        SCOPED_TRACE(how.name);
        run_trainer_ranks(folder, how, [&](const TrainerRank& r) {
          train::Trainer trainer(r.models, r.settings(), {});
          const train::EvalLoopOutput output =
              trainer.predict({.dataset = dataset_of(samples), .collator = r.collator}, "test");
          EXPECT_EQ(output.num_samples, 7);
          expect_close(*output.metrics.find("test_loss"), expected.loss, "loss");
          expect_close(*output.metrics.find("test_perplexity"), std::exp(expected.loss), "perplexity", 1e-4);
          expect_close(*output.metrics.find("test_token_accuracy"), expected.accuracy, "accuracy");
          EXPECT_TRUE(output.metrics.find("test_samples_per_second"));
        });
      }
}

TEST(Evaluation, SeveralSetsOfDataHaveTheirNames) {
  const auto folder = golden_folder("qwen2");
  const auto samples = random_sequences(6, 256);
  run_trainer_ranks(folder, {.dp = 2}, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup;
    setup.eval_data.push_back({.dataset = dataset_of(samples), .collator = r.collator, .name = "all"});
    setup.eval_data.push_back(
        {.dataset = dataset_of(samples), .collator = r.collator, .name = "two", .max_samples = 2});
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const train::MetricList metrics = trainer.evaluate();
    expect_close(*metrics.find("eval_all_loss"), plain_evaluation(folder, samples).loss, "all");
    expect_close(*metrics.find("eval_two_loss"), plain_evaluation(folder, {samples[0], samples[1]}).loss, "two");
    EXPECT_EQ(heard.events, (std::vector<std::string>{"init_end", "prediction_step", "prediction_step", "log",
                                                      "prediction_step", "log", "evaluate"}));
    EXPECT_EQ(trainer.state().log_history.size(), 2);
    EXPECT_EQ(trainer.optimized_model(), nullptr);  // no gradients, no optimizer
  });
}

TEST(Evaluation, NeedsSomethingToEvaluate) {
  run_trainer_ranks(golden_folder("llama"), {}, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), {});
    expect_error<ConfigError>([&] { trainer.evaluate(); }, {"eval_dataset", "val_size"});
    expect_error<ConfigError>([&] { trainer.train(); }, {"no data to train on", "dataset"});
    std::vector<data::Sequence> silent = random_sequences(3, 512);
    for (data::Sequence& s : silent) std::ranges::fill(s.labels, data::kIgnoredLabel);
    expect_error<DataError>([&] { trainer.predict({.dataset = dataset_of(silent), .collator = r.collator}); },
                            {"3 evaluation samples", "label"});
    expect_error<DataError>(
        [&] { trainer.predict({.dataset = dataset_of({}), .collator = r.collator, .name = "nothing"}); },
        {"\"nothing\"", "no samples"});
  });
}

}  // namespace
}  // namespace megalith::testing
