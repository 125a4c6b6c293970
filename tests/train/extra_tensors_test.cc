// Extra tensors and collators of one's own reach the loss in every layout as they reach it on one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "megalith/model/gpt_model.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

float weight_at(const data::Sequence& row, size_t token) {
  return 0.25F + static_cast<float>((row.ids[token] * 7 + static_cast<int32_t>(token) * 3) % 11) / 4;
}
float reward_of(const data::Sequence& row) { return 0.5F + static_cast<float>(row.ids[0] % 5); }

// The same samples with a weight for each label and a reward for each row.
class WeightedData : public data::Dataset {
 public:
  explicit WeightedData(const std::vector<data::Sequence>& rows) : rows_(rows) {}
  int64_t size() const override { return std::ssize(rows_); }
  data::Sample sample(int64_t index) const override {
    data::Sequence row = rows_[static_cast<size_t>(index)];
    std::vector<float> weights;
    for (size_t i = 0; i < row.ids.size(); ++i) weights.push_back(weight_at(row, i));
    row.fields["weight"] = {.numbers = weights, .fill = 1e6};  // padding would show
    row.fields["reward"] = {.numbers = std::vector<float>{reward_of(row)}, .of = data::FieldOf::kRow};
    return {.row = row, .rejected = {}};
  }

 private:
  const std::vector<data::Sequence> rows_;
};

// Σ reward of the row · weight of the label · -log p.
class WeightedObjective : public train::Objective {
 public:
  std::vector<std::string> extra_keys() const override { return {"weight", "reward"}; }
  train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int,
                             train::Phase) const override {
    const at::Tensor weights = batch.extra("weight", at::kCPU), rewards = batch.extra("reward", at::kCPU);
    at::Tensor weighted = weights * output.token_losses;
    const std::vector<int64_t>& ends = batch.layout.cumulative();
    at::Tensor sum = at::zeros({});
    for (int64_t row = 0; row < rewards.size(0); ++row) {
      const auto at = static_cast<size_t>(row);
      sum = sum + rewards[row] * weighted.slice(0, ends[at], ends[at + 1]).sum();
    }
    return {.sum = sum, .count = batch.loss_tokens};
  }
};

// Another way to the same batch: rows and extra tensors made here, in two dimensions.
data::MicroBatch own_batch(std::span<const data::Sample> samples, const data::Collator& built_in) {
  int64_t longest = 0;
  for (const data::Sample& sample : samples) longest = std::max(longest, std::ssize(sample.row.ids) - 1);
  const auto rows = std::ssize(samples);
  const int64_t length = built_in.padded_length(longest);
  data::MicroBatch batch;
  batch.ids = at::zeros({rows, length}, at::kLong);
  batch.labels = at::full({rows, length}, data::kIgnoredLabel, at::kLong);
  at::Tensor weights = at::zeros({rows, length}), rewards = at::zeros({rows});
  for (int64_t r = 0; r < rows; ++r) {
    const data::Sequence& row = samples[static_cast<size_t>(r)].row;
    rewards[r] = reward_of(row);
    for (int64_t i = 0; i + 1 < std::ssize(row.ids); ++i) {
      const auto next = static_cast<size_t>(i) + 1;
      batch.ids[r][i] = row.ids[next - 1];
      batch.labels[r][i] = row.labels[next];
      weights[r][i] = weight_at(row, next);
    }
  }
  batch.extras["weight"] = {weights};
  batch.extras["reward"] = {rewards, data::ExtraOf::kRows};
  return batch;
}

enum class Collation { kBuiltIn, kOwn };

void give_extras(const TrainerRank& r, Collation how, const std::vector<data::Sequence>& rows,
                 train::TrainerSetup& setup) {
  const auto size = std::ssize(rows);
  const bool own = how == Collation::kOwn;
  const data::Collator collator = own ? data::Collator(r.collator.options(), own_batch) : r.collator;
  const std::shared_ptr<const data::Dataset> data = own ? dataset_of(rows) : std::make_shared<WeightedData>(rows);
  setup.train_data = train::numbered_data(data, {.size = size, .shuffle = false}, collator);
  setup.eval_data = {{.dataset = data, .collator = collator}};
  setup.objective = std::make_unique<WeightedObjective>();
}

struct Losses {
  std::vector<double> training, norms;
  double evaluation = 0;
};

Losses weighted_run(const TrainerCase& how, Collation collation, const std::vector<data::Sequence>& rows) {
  SCOPED_TRACE(how.name);
  Losses result;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::TrainerSetup setup;
    give_extras(r, collation, rows, setup);
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    trainer.train();
    const double evaluation = *trainer.evaluate().find("eval_loss");
    if (r.rank.rank != 0) return;
    result.evaluation = evaluation;
    for (const train::MetricList& line : trainer.state().log_history) {
      if (const auto loss = line.find("loss")) result.training.push_back(*loss);
      if (const auto norm = line.find("grad_norm")) result.norms.push_back(*norm);
    }
  });
  return result;
}

// SGD: it does not magnify the rounding of small gradients. 8 samples per step.
TrainerCase weighted_case(std::string name, int accumulation, const TrainerCase& sizes) {
  TrainerCase c = sizes;
  c.name = std::move(name);
  c.args.optimizer.optimizer = config::OptimizerKind::kSgd;
  c.args.optimizer.optim = config::HfOptimizer::kSgd;
  c.args.optimizer.learning_rate = 0.003;
  c.args.batch.gradient_accumulation_steps = accumulation;
  c.args.batch.micro_batch_size = 8 / c.dp / accumulation;
  c.args.parallel.sequence_parallel = c.tp > 1;
  return c;
}

void expect_same_losses(const Losses& actual, const Losses& expected) {
  ASSERT_EQ(actual.training.size(), expected.training.size());
  for (size_t i = 0; i < expected.training.size(); ++i) {
    expect_close(actual.training[i], expected.training[i], fmt::format("loss {}", i));
    expect_close(actual.norms[i], expected.norms[i], fmt::format("grad_norm {}", i), 5e-5);
  }
  expect_close(actual.evaluation, expected.evaluation, "eval_loss");
}

// The first loss, with the model in plain ATen.
double plain_weighted_loss(const std::vector<data::Sequence>& rows) {
  const at::NoGradGuard no_grad;
  const ReferenceModel model = ReferenceModel::from_folder(golden_folder("llama"));
  double sum = 0;
  int64_t tokens = 0;
  for (const data::Sequence& row : rows) {
    const at::Tensor ids = at::tensor(std::vector<int64_t>(row.ids.begin(), row.ids.end())).unsqueeze(0);
    const at::Tensor labels = at::tensor(std::vector<int64_t>(row.labels.begin(), row.labels.end())).unsqueeze(0);
    const at::Tensor losses = reference_token_losses(model.forward(ids).logits, labels);
    for (size_t i = 1; i < row.ids.size(); ++i)
      sum += reward_of(row) * weight_at(row, i) * losses[0][static_cast<int64_t>(i) - 1].item<double>();
    tokens += reference_label_count(labels);
  }
  return sum / static_cast<double>(tokens);
}

TEST(ExtraTensors, ReachTheLossInEveryLayout) {
  const auto rows = random_sequences(20, 512);
  const Losses alone = weighted_run(weighted_case("one rank", 1, {}), Collation::kBuiltIn, rows);
  ASSERT_EQ(alone.training.size(), 4U);
  expect_close(alone.training[0], plain_weighted_loss({rows.begin(), rows.begin() + 8}), "first loss");
  const auto packed = [](TrainerCase c) {
    c.collator.padding = data::Padding::kNone;
    return c;
  };
  const TrainerCase vpp{.pp = 2, .vpp = 2};
  for (const Collation collation : {Collation::kBuiltIn, Collation::kOwn})
    for (const TrainerCase& how :
         {weighted_case("accumulation", 4, {}), weighted_case("packed", 2, packed({})),
          weighted_case("tp 2", 2, {.tp = 2}), weighted_case("pp 2", 4, {.pp = 2}),
          weighted_case("pp 4: stages between", 4, {.pp = 4}), weighted_case("vpp", 4, vpp),
          weighted_case("cp 2", 2, {.cp = 2}), weighted_case("cp 2 packed", 2, packed({.cp = 2})),
          weighted_case("cp 4", 1, {.cp = 4}), weighted_case("dp 2", 2, {.dp = 2}),
          weighted_case("tp 2 pp 2 cp 2 packed", 2, packed({.tp = 2, .pp = 2, .cp = 2})),
          weighted_case("dp 2 cp 2 over sockets", 2, {.dp = 2, .cp = 2, .gloo = true})}) {
      SCOPED_TRACE(fmt::format("{}, {} collator", how.name, collation == Collation::kOwn ? "own" : "built-in"));
      expect_same_losses(weighted_run(how, collation, rows), alone);
      if (::testing::Test::HasFailure()) return;
    }
}

// Each tensor of rows and of the whole batch is whole on every rank; those of tokens are cut as ids are.
TEST(ExtraTensors, AreCutAsTokensAre) {
  class Looking : public train::Objective {
   public:
    train::MicrobatchLoss run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                   int microbatch, train::Phase phase) const override {
      look(batch);
      EXPECT_TRUE(batch.extra("ids", at::kCPU).equal(batch.ids));
      return Objective::run_head(batch, chunk, std::move(hidden), microbatch, phase);
    }
    at::Tensor run_stage(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden, int microbatch,
                         train::Phase phase) const override {
      look(batch);
      return Objective::run_stage(batch, chunk, std::move(hidden), microbatch, phase);
    }
    static void look(const data::MicroBatch& batch) {
      EXPECT_EQ(batch.extra("ids", at::kCPU).size(0), batch.tokens());
      EXPECT_TRUE(batch.extra("positions", at::kCPU).select(1, 1).equal(batch.layout.positions(at::kCPU)));
      EXPECT_EQ(batch.extra("rows", at::kCPU).sizes(), (at::IntArrayRef{2, 3}));
      EXPECT_EQ(batch.extra("batch", at::kCPU).sizes(), (at::IntArrayRef{5}));
    }
  };
  for (const data::Padding padding : {data::Padding::kLongest, data::Padding::kNone}) {
    TrainerCase how{.name = "tp 2 pp 2 cp 2", .tp = 2, .pp = 2, .cp = 2};
    how.args.batch.micro_batch_size = 2;
    how.args.batch.gradient_accumulation_steps = 2;
    how.collator.padding = padding;
    run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
      const data::Collator collator(
          r.collator.options(), [](std::span<const data::Sample> samples, const data::Collator& built_in) {
            data::MicroBatch batch = built_in.collate(samples);
            batch.extras["ids"] = {batch.ids};
            batch.extras["positions"] = {batch.layout.positions(at::kCPU).unsqueeze(1).repeat({1, 2})};
            batch.extras["rows"] = {at::rand({batch.samples, 3}), data::ExtraOf::kRows};
            batch.extras["batch"] = {at::rand({5}), data::ExtraOf::kBatch};
            return batch;
          });
      train::TrainerSetup setup;
      setup.train_data = train::numbered_data(dataset_of(random_sequences(8, 512)), {.size = 8}, collator);
      setup.objective = std::make_unique<Looking>();
      train::Trainer(r.models, r.settings(), std::move(setup)).train();
    });
  }
}

TEST(ExtraTensors, AResumedRunHasThem) {
  const TempFolder whole, rest;
  const auto rows = random_sequences(20, 200);
  TrainerCase how{.pp = 2, .cp = 2};
  how.args.batch.micro_batch_size = 2;
  const auto train = [&](const TempFolder& out, std::optional<std::filesystem::path> from) {
    how.args = resume_arguments(out.path(), 4, 2);
    how.args.batch.micro_batch_size = 4;
    how.args.batch.gradient_accumulation_steps = 2;
    ResumeRun run{.checkpoint = std::move(from), .samples = rows};
    run.change = [&](const TrainerRank& r, train::TrainerSetup& setup) {
      give_extras(r, Collation::kOwn, rows, setup);
    };
    return run_resumable(how, run);
  };
  const train::TrainerState all = train(whole, std::nullopt);
  const train::TrainerState resumed = train(rest, whole / "checkpoint-2");
  EXPECT_EQ(all.global_step, resumed.global_step);
  expect_same_tensors(rest / "checkpoint-4", whole / "checkpoint-4", /*with_rng=*/true);
}

// ---- Refusals ----

// All ranks throw, the same, before they have done anything together: nobody waits.
void expect_refused_on_all_ranks(const std::function<void(const TrainerRank&, train::TrainerSetup&)>& change,
                                 const std::vector<std::string>& parts) {
  TrainerCase how{.name = "tp 2 pp 2 cp 2", .tp = 2, .pp = 2, .cp = 2};
  std::mutex mutex;
  std::vector<std::string> messages;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(20, 512)), dataset_of(random_sequences(5, 512)));
    change(r, setup);
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const std::string message = error_of<DataError>([&] { trainer.train(); });
    EXPECT_EQ(trainer.optimized_model(), nullptr);  // no memory for gradients yet
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  ASSERT_EQ(messages.size(), 8U);
  for (const std::string& message : messages) EXPECT_EQ(message, messages.front());
  for (const std::string& part : parts) expect_contains(messages.front(), part);
}

data::MicroBatch too_short(std::span<const data::Sample> samples, const data::Collator& /*built_in*/) {
  data::MicroBatch batch;
  batch.ids = batch.labels = at::ones({std::ssize(samples), 6}, at::kLong);
  return batch;
}

TEST(ExtraTensors, WhatIsMissingOrWrongEndsTheRunOnAllRanksBeforeItBegins) {
  expect_refused_on_all_ranks(
      [](const TrainerRank&, train::TrainerSetup& setup) { setup.objective = std::make_unique<WeightedObjective>(); },
      {"no extra tensor \"weight\"; it has none"});
  expect_refused_on_all_ranks(
      [](const TrainerRank& r, train::TrainerSetup& setup) {
        setup.train_data = train::numbered_data(dataset_of(random_sequences(20, 512)), {.size = 20},
                                                data::Collator(r.collator.options(), too_short));
      },
      {"\"ids\" is int64 [8, 6]", "context_parallel_size 2", "multiple of 4"});
  expect_refused_on_all_ranks(
      [](const TrainerRank& r, train::TrainerSetup& setup) {
        setup.eval_data[0].collator = data::Collator(r.collator.options(), too_short);
      },
      {"\"ids\" is int64 [5, 6]"});
}

// Later batches are looked at before they are run, whatever made them; also in evaluations.
TEST(ExtraTensors, ABatchWithoutThemIsRefusedBeforeItIsRun) {
  TrainerCase how{.name = "tp 2 pp 2", .tp = 2, .pp = 2};
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(std::make_shared<WeightedData>(random_sequences(20, 512)));
    setup.objective = std::make_unique<WeightedObjective>();
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    expect_error<DataError>(
        [&] { trainer.predict({.dataset = dataset_of(random_sequences(5, 512)), .collator = r.collator}); },
        {"no extra tensor \"weight\""});
    trainer.train();  // and continues as if nothing had happened
    EXPECT_EQ(trainer.state().global_step, 4);
  });
}

}  // namespace
}  // namespace megalith::testing
