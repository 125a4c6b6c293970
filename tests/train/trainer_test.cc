// The loop: events, ends, faults, save points, resumption, other objectives.
#include "megalith/train/trainer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "megalith/base/trace.h"
#include "megalith/config/derive.h"
#include "megalith/data/token_table.h"
#include "megalith/train/stop_flag.h"
#include "megalith/train/training_data.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using Events = std::vector<std::string>;

// ---- Events ----

TEST(TrainerEvents, ComeInOrder) {
  TrainerCase how;
  how.args.run.max_steps = 2;
  how.args.batch.micro_batch_size = 2;
  how.args.batch.gradient_accumulation_steps = 2;
  how.args.eval.strategy = config::Interval::kSteps;
  how.args.eval.steps = 2;
  const TempFolder folder;
  how.args.save.output_dir = folder.path().string();
  how.args.save.strategy = config::Interval::kEpoch;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(8, 512)), dataset_of(random_sequences(3, 512)));
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    trainer.train();
    const Events step{"step_begin", "substep_end", "pre_optimizer_step", "optimizer_step", "step_end", "log"};
    Events expected{"init_end", "train_begin", "epoch_begin"};
    expected.insert(expected.end(), step.begin(), step.end());
    expected.insert(expected.end(), step.begin(), step.end());
    for (const char* event : {"prediction_step", "log", "evaluate", "epoch_end", "save", "log", "train_end"})
      expected.emplace_back(event);
    EXPECT_EQ(heard.events, expected);
    EXPECT_EQ(trainer.state().epoch, 1);
    EXPECT_EQ(trainer.state().global_step, 2);
    EXPECT_EQ(trainer.state().log_history.size(), 4);
    EXPECT_EQ(trainer.state().log_history[0].find("step"), 1);
    EXPECT_EQ(trainer.state().log_history[0].find("epoch"), 0.5);
    EXPECT_GT(trainer.state().total_flos, 0);
    EXPECT_GT(trainer.state().num_input_tokens_seen, 0);
  });
}

TEST(TrainerEvents, EpochsOfDifferentOrders) {
  TrainerCase how;
  how.args.run.max_steps = -1;
  how.args.run.num_train_epochs = 2.5;
  how.args.batch.micro_batch_size = 4;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(9, 512)));
    setup.train_data =
        train::numbered_data(dataset_of(random_sequences(9, 512)), {.size = 9, .shuffle = true}, r.collator);
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const train::TrainOutput output = trainer.train();
    EXPECT_EQ(output.global_step, 5);  // two steps of 4 per epoch
    EXPECT_EQ(std::ranges::count(heard.events, "epoch_begin"), 3);
    EXPECT_EQ(std::ranges::count(heard.events, "epoch_end"), 3);
    EXPECT_EQ(trainer.state().epoch, 2.5);
    EXPECT_EQ(trainer.state().num_train_epochs, 3);
    double mean = 0;
    for (int i = 0; i < 5; ++i) mean += *heard.lines[static_cast<size_t>(i)].find("loss") / 5;
    expect_close(output.training_loss, mean, "training loss", 1e-12);
    EXPECT_EQ(output.metrics.find("train_loss"), output.training_loss);
    for (const char* key : {"train_runtime", "train_samples_per_second", "train_steps_per_second",
                            "train_tokens_per_second", "total_flos"})
      EXPECT_TRUE(output.metrics.find(key)) << key;
    EXPECT_EQ(output.work.steps, 5);
    EXPECT_EQ(output.work.samples, 20);
    EXPECT_TRUE(trainer.train().global_step == 5);  // again, from step 0
  });
}

class EndlessStream : public data::SampleStream {
 public:
  explicit EndlessStream(std::vector<data::Sequence> samples) : samples_(std::move(samples)) {}
  std::optional<data::Sample> next() override {
    if (at_ == samples_.size()) return std::nullopt;
    return data::Sample{samples_[at_++], {}};
  }
  bool skip() override { return next().has_value(); }

 private:
  std::vector<data::Sequence> samples_;
  size_t at_ = 0;
};

TEST(TrainerData, StreamsTrainAsNumberedSamplesDo) {
  const auto folder = golden_folder("llama");
  const auto samples = random_sequences(9, 512);
  TrainerCase how{.dp = 2};
  how.args.batch.micro_batch_size = 2;
  const auto expected = run_training(folder, how, samples, samples).numbers("loss");
  run_trainer_ranks(folder, how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup;
    setup.train_data =
        train::streamed_data([&](int64_t) { return std::make_unique<EndlessStream>(samples); }, r.collator);
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    trainer.train();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(heard.lines[i].find("loss"), expected[i]);
    EXPECT_EQ(std::ranges::count(heard.events, "epoch_end"), 2);  // two steps each
  });
}

// Megatron's `single`: once through the data.
TEST(TrainerData, TheRunEndsWithTheData) {
  TrainerCase how{.dp = 2};
  how.args.batch.micro_batch_size = 2;
  how.args.run.max_steps = 10;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup;
    setup.train_data = train::numbered_data(dataset_of(random_sequences(9, 512)),
                                            {.size = 9, .shuffle = false, .end = data::EpochEnd::kStop}, r.collator);
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    EXPECT_EQ(trainer.train().global_step, 2);
    EXPECT_EQ(std::ranges::count(heard.events, "epoch_begin"), 1);
    EXPECT_EQ(heard.events.back(), "train_end");
  });
}

TEST(TrainerData, BatchesGrow) {
  TrainerCase how;
  how.args.run.max_steps = 4;
  how.args.batch.micro_batch_size = 2;
  how.args.batch.global_batch_size = 4;
  how.args.batch.rampup_batch_size = {2, 2, 4};
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(random_sequences(20, 512))));
    trainer.train();
    const layout::MicrobatchCalculator batches(config::batch_plan(r.args, 1));
    int64_t consumed = 0;
    for (int i = 0; i < 4; ++i) consumed += batches.at(consumed).global_batch_size;
    EXPECT_EQ(trainer.data_position().consumed_samples, consumed);
    EXPECT_LT(consumed, 16);
  });
  how.args.batch.micro_batch_size = 4;
  how.args.batch.decrease_batch_size_if_needed = true;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(random_sequences(20, 512))));
    expect_error<ConfigError>([&] { trainer.train(); }, {"rampup_batch_size", "at least 4"});
  });
}

TEST(TrainerData, SkippedIterationsOnlyConsumeData) {
  TrainerCase how;
  how.args.dialect = config::Dialect::kPretrain;
  how.args.run.iterations_to_skip = {2};
  how.args.run.max_steps = 3;
  how.args.batch.micro_batch_size = 2;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(8, 512)));
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    trainer.train();
    EXPECT_EQ(trainer.data_position().consumed_samples, 6);
    EXPECT_EQ(trainer.optimized_model()->optimizer().steps(), 2);
    ASSERT_EQ(heard.lines.size(), 3);  // two steps and the totals
    EXPECT_EQ(heard.lines[1].find("consumed_samples"), 6);
    EXPECT_EQ(heard.lines[1].find("skipped_samples"), 2);
    EXPECT_EQ(heard.lines[1].find("global_batch_size"), 2);
  });
}

// ---- Ends and faults ----

class StopAt : public train::TrainerCallback {
 public:
  StopAt(train::StopFlag& flag, int64_t step) : flag_(flag), step_(step) {}
  void on_step_begin(train::TrainerEvent& event) override {  // agreed on before the update
    if (event.state.global_step + 1 == step_) flag_.request();
  }

 private:
  train::StopFlag& flag_;
  int64_t step_;
};

TEST(TrainerStop, TheStopRequestOfOneRankEndsAll) {
  for (const TrainerCase& layout : {TrainerCase{.dp = 2}, TrainerCase{.tp = 2}, TrainerCase{.pp = 2}}) {
    TrainerCase how = layout;
    how.args.run.max_steps = 50;
    how.args.batch.micro_batch_size = 2;
    const TempFolder folder;
    how.args.save.output_dir = folder.path().string();
    how.args.save.strategy = config::Interval::kSteps;
    how.args.save.steps = 100;
    run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
      train::StopFlag flag;
      train::TrainerSetup setup = r.setup(dataset_of(random_sequences(8, 512)));
      setup.stop = &flag;
      if (r.rank.rank == 1) setup.callbacks.push_back(std::make_unique<StopAt>(flag, 3));
      train::Trainer trainer(r.models, r.settings(), std::move(setup));
      const train::TrainOutput output = trainer.train();
      EXPECT_EQ(output.global_step, 3);
      EXPECT_TRUE(output.interrupted);
      EXPECT_TRUE(std::filesystem::exists(folder / "checkpoint-3/config.json"));
    });
  }
}

TEST(TrainerFaults, ImpossibleStepsAreRefusedBeforeMemoryIsTaken) {
  TrainerCase how{.pp = 2, .vpp = 2};
  how.args.batch.micro_batch_size = 2;
  how.args.batch.gradient_accumulation_steps = 3;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(random_sequences(20, 512))));
    expect_error<ConfigError>([&] { trainer.train(); }, {"3 micro-batches", "use 4", "gradient_accumulation_steps"});
    EXPECT_EQ(trainer.optimized_model(), nullptr);
  });
  how = {};
  how.args.eval.strategy = config::Interval::kEpoch;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(random_sequences(20, 512))));
    expect_error<ConfigError>([&] { trainer.train(); }, {"eval_strategy", "eval_dataset", "val_size"});
  });
  how = {};
  how.args.batch.micro_batch_size = 64;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(random_sequences(20, 512))));
    expect_error<ConfigError>([&] { trainer.train(); }, {"a step takes 64 samples", "has 20"});
  });
}

// The loss of one micro-batch on one rank is not a number.
class PoisonedObjective : public train::Objective {
 public:
  PoisonedObjective(bool here, int step, int microbatch) : here_(here), step_(step), microbatch_(microbatch) {}
  void begin(std::span<const data::MicroBatch>, train::Phase) override { ++steps_; }
  train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                             train::Phase phase) const override {
    train::MicrobatchLoss loss = Objective::loss(output, batch, microbatch, phase);
    if (here_ && steps_ == step_ && microbatch == microbatch_) loss.sum = loss.sum * NAN;
    return loss;
  }

 private:
  bool here_;
  int step_, microbatch_, steps_ = 0;
};

TrainerCase poisoned_case(int pp, bool overlap) {
  TrainerCase how{.pp = pp, .dp = 2};
  how.args.batch.micro_batch_size = 2;
  how.args.batch.gradient_accumulation_steps = 2;
  how.args.ddp.overlap_grad_reduce = overlap;
  how.args.fault.rerun_mode = config::RerunMode::kDisabled;  // the error at once; rerun_guard_test.cc has the others
  return how;
}

TEST(TrainerFaults, ALossThatIsNotANumberIsNamed) {
  for (const int pp : {1, 2})
    for (const bool overlap : {false, true}) {
      std::atomic<int> named = 0;
      run_trainer_ranks(golden_folder("llama"), poisoned_case(pp, overlap), [&](const TrainerRank& r) {
        const int bad_rank = 2 * pp - 1;  // in the last stage
        train::TrainerSetup setup = r.setup(dataset_of(random_sequences(20, 512)));
        setup.objective = std::make_unique<PoisonedObjective>(r.rank.rank == bad_rank, 2, 1);
        train::Trainer trainer(r.models, r.settings(), std::move(setup));
        try {
          trainer.train();
          ADD_FAILURE() << "no error";
        } catch (const train::NonFiniteLoss& error) {
          EXPECT_EQ(r.rank.rank, bad_rank);
          for (const std::string& part :
               {std::string("micro-batch 2 of 2"), std::string("step 2"), "rank " + std::to_string(bad_rank),
                std::string("nan"), std::string("check_for_nan_in_loss_and_grad")})
            expect_contains(error.what(), part);
          ++named;
          r.rank.world.report_failure(error.what());
        } catch (const comm::PeerFailure&) {
        }
      });
      EXPECT_EQ(named, 1);
    }
}

TEST(TrainerFaults, ALossThatIsNotANumberMayBeLeftOut) {
  TrainerCase how = poisoned_case(1, false);
  how.args.ddp.check_for_nan_in_loss_and_grad = false;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(20, 512)));
    setup.objective = std::make_unique<PoisonedObjective>(r.rank.rank == 1, 2, 1);
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    trainer.train();
    EXPECT_EQ(heard.lines[0].find("skipped_iter"), 0);
    EXPECT_EQ(heard.lines[1].find("skipped_iter"), 1);
    EXPECT_EQ(heard.lines[2].find("skipped_iter"), 0);
    EXPECT_TRUE(std::isnan(*heard.lines[1].find("loss")));  // not 0, with or without logging_nan_inf_filter
    EXPECT_EQ(heard.lines[1].find("nan_iter"), 1);
    EXPECT_EQ(heard.lines[2].find("nan_iter"), 0);
    EXPECT_TRUE(std::isfinite(*heard.lines[3].find("loss")));
    EXPECT_EQ(trainer.optimized_model()->optimizer().steps(), 3);
  });
}

// Every step is told, however rarely lines are logged.
class StepRecorder : public train::TrainerCallback {
 public:
  struct Heard {
    std::vector<train::MetricList> steps;
    std::vector<train::StepOutcome> outcomes;
  };
  explicit StepRecorder(Heard& heard) : heard_(heard) {}
  void on_step_end(train::TrainerEvent& event) override {
    heard_.steps.push_back(event.metrics);
    heard_.outcomes.push_back(event.outcome);
  }

 private:
  Heard& heard_;
};

TEST(TrainerFaults, StepsTellTheirNumbersAndWhyTheyWereSkipped) {
  TrainerCase how = poisoned_case(1, false);
  how.args.ddp.check_for_nan_in_loss_and_grad = false;
  how.args.logging.steps = 100;
  how.args.run.max_steps = 4;
  how.args.run.iterations_to_skip = {3};
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    StepRecorder::Heard steps;
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(20, 512)));
    setup.objective = std::make_unique<PoisonedObjective>(r.rank.rank == 1, 2, 1);
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    setup.callbacks.push_back(std::make_unique<StepRecorder>(steps));
    train::TrainerSettings settings = r.settings();
    settings.log.consumed_samples = true;
    train::Trainer trainer(r.models, settings, std::move(setup));
    const train::TrainOutput output = trainer.train();
    using enum train::StepOutcome;
    EXPECT_EQ(steps.outcomes, (std::vector{kUpdated, kLossNotFinite, kLeftOut, kUpdated}));
    ASSERT_EQ(steps.steps.size(), 4U);
    EXPECT_TRUE(std::isnan(*steps.steps[1].find("loss")));
    EXPECT_FALSE(steps.steps[1].find("grad_norm"));
    EXPECT_FALSE(steps.steps[2].find("loss"));
    EXPECT_EQ(steps.steps[2].find("skipped_samples"), 8);
    EXPECT_EQ(steps.steps[3].find("consumed_samples"), 32);
    EXPECT_TRUE(steps.steps[3].find("grad_norm"));
    EXPECT_EQ(heard.lines.size(), 1U);  // the totals
    EXPECT_DOUBLE_EQ(output.training_loss, (*steps.steps[0].find("loss") + *steps.steps[3].find("loss")) / 2);
  });
}

// ---- Other objectives ----

// A preference loss in small: the second half of the rows is to be less likely than the first.
class PairObjective : public train::Objective {
 public:
  std::vector<std::string> metrics_keys(train::Phase) const override { return {"margin", "right"}; }
  bool wants_correct(train::Phase) const override { return false; }
  bool has_perplexity() const override { return false; }
  train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int,
                             train::Phase) const override {
    EXPECT_TRUE(batch.preference);
    const int64_t rows = batch.sequences, pairs = rows / 2;
    const auto& ends = batch.layout.cumulative();
    std::vector<at::Tensor> sums;
    for (int64_t i = 0; i < rows; ++i)
      sums.push_back(
          -output.token_losses.slice(0, ends[static_cast<size_t>(i)], ends[static_cast<size_t>(i) + 1]).sum());
    const at::Tensor logps = at::stack(sums), h = logps.slice(0, 0, pairs) - logps.slice(0, pairs, rows);
    train::MicrobatchLoss loss{.sum = -at::log_sigmoid(h * 0.1).sum(), .count = pairs};
    loss.metrics.push_back({"margin", h.detach().sum(), static_cast<double>(pairs)});
    loss.metrics.push_back({"right", h.detach().gt(0).sum(), static_cast<double>(pairs)});
    return loss;
  }
};

TEST(TrainerObjective, SeesWholePairsInEveryLayout) {
  const auto rows = random_sequences(16, 512);
  data::TokenTable table;
  for (size_t i = 0; i < 8; ++i) table.append(data::Sample{rows[i], rows[i + 8]});
  const auto pairs = data::dataset_of(std::move(table), {.pairs = true});
  const auto run = [&](const TrainerCase& layout) {
    TrainerCase how = layout;
    how.args.ddp.calculate_per_token_loss = false;
    how.args.batch.micro_batch_size = 2;
    how.args.batch.gradient_accumulation_steps = 4 / how.dp;
    std::vector<train::MetricList> lines;
    train::MetricList evaluation;
    run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
      Recorder::Heard heard;
      train::TrainerSetup setup = r.setup(pairs, pairs);
      setup.objective = std::make_unique<PairObjective>();
      setup.callbacks.push_back(std::make_unique<Recorder>(heard));
      train::Trainer trainer(r.models, r.settings(), std::move(setup));
      trainer.train();
      const train::MetricList result = trainer.evaluate();
      if (r.rank.rank == 0) lines = heard.lines, evaluation = result;
    });
    EXPECT_FALSE(evaluation.find("eval_perplexity"));
    EXPECT_GT(*evaluation.find("eval_margin"), *lines[0].find("margin"));  // it learns
    return lines;
  };
  const auto alone = run({});
  for (const TrainerCase& layout :
       {TrainerCase{.dp = 2}, TrainerCase{.pp = 2}, TrainerCase{.tp = 2, .pp = 2, .vpp = 2}}) {
    const auto spread = run(layout);
    for (size_t i = 0; i < 4; ++i)
      for (const char* key : {"loss", "margin", "right"})
        expect_close(*spread[i].find(key), *alone[i].find(key), fmt::format("{} {}", key, i), 5e-5);
  }
}

// ---- Save points ----

double loss_of_folder(const std::filesystem::path& folder, const std::vector<data::Sequence>& samples) {
  double loss = 0;
  run_trainer_ranks(folder, {}, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), {});
    loss = *trainer.predict({.dataset = dataset_of(samples), .collator = r.collator}).metrics.find("test_loss");
  });
  return loss;
}

TEST(TrainerSaves, FoldersThatCanBeLoaded) {
  const TempFolder out;
  std::ofstream(out / "metrics.jsonl") << "{}\n";
  const auto samples = random_sequences(12, 256);
  TrainerCase how{.tp = 2, .pp = 2, .dp = 2};
  how.args.batch.micro_batch_size = 2;
  how.args.optimizer.use_distributed_optimizer = how.args.ddp.overlap_param_gather = true;
  how.args.save.output_dir = out.path().string();
  how.args.save.strategy = config::Interval::kSteps;
  how.args.save.steps = 3;
  double at_end = 0;
  run_trainer_ranks(golden_folder("qwen2"), how, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(samples), dataset_of(samples)));
    trainer.train();
    const double loss = *trainer.evaluate().find("eval_loss");
    if (r.rank.rank == 0) at_end = loss;
    trainer.save_model(out.path());
    trainer.save_model(out.path());  // over the first
  });
  for (const char* name : {"checkpoint-3", "checkpoint-4"})
    for (const char* file : {"config.json", "model.safetensors", "args.yaml", "trainer_state.json"})
      EXPECT_TRUE(std::filesystem::exists(out.path() / name / file)) << name << "/" << file;
  EXPECT_EQ(train::TrainerState::load(out / "checkpoint-3/trainer_state.json").global_step, 3);
  EXPECT_TRUE(std::filesystem::exists(out / "metrics.jsonl"));
  EXPECT_TRUE(std::filesystem::exists(out / "args.yaml"));
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(out.path())) {
    expect_contains(
        "checkpoint-3 checkpoint-4 latest metrics.jsonl args.yaml config.json model.safetensors generation_config.json",
        entry.path().filename().string());
    ++entries;
  }
  EXPECT_EQ(entries, 8);
  expect_close(loss_of_folder(out.path(), samples), at_end, "exported model");
  expect_close(loss_of_folder(out / "checkpoint-4", samples), at_end, "last save point");
  EXPECT_GT(std::abs(loss_of_folder(out / "checkpoint-3", samples) - at_end), 1e-4);
}

TEST(TrainerSaves, TheBestModelComesBack) {
  const TempFolder out;
  const auto samples = random_sequences(8, 512);
  TrainerCase how{.dp = 2};
  how.args.batch.micro_batch_size = 4;
  how.args.optimizer.learning_rate = 0.5;  // gets worse from step to step
  how.args.optimizer.use_distributed_optimizer = true;
  how.args.save.output_dir = out.path().string();
  how.args.save.strategy = config::Interval::kBest;
  how.args.eval.strategy = config::Interval::kSteps;
  how.args.eval.steps = 1;
  how.args.eval.load_best_model_at_end = true;
  how.args.run.max_steps = 3;
  how.args.run.early_stopping_steps = 5;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(samples), dataset_of(samples)));
    trainer.train();
    ASSERT_TRUE(trainer.state().best_model_checkpoint);
    EXPECT_EQ(trainer.state().best_model_checkpoint,
              (out / fmt::format("checkpoint-{}", *trainer.state().best_global_step)).string());
    expect_close(*trainer.evaluate().find("eval_loss"), *trainer.state().best_metric, "best loss");
  });
}

// ---- Resumption ----

// Optimizer state in memory.
class KeptState : public optim::StateSource {
 public:
  explicit KeptState(const optim::Optimizer& optimizer) {
    for (const auto& part : optimizer.sharded_state()) parts_.push_back({part, part.local.clone()});
  }
  std::string name() const override { return "memory"; }
  std::vector<Tensor> tensors() const override {
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const auto& [part, copy] : parts_) shapes[part.name] = part.global_shape;
    std::vector<Tensor> all;
    for (const auto& [name, shape] : shapes) all.push_back({name, shape});
    return all;
  }
  void read(const parallel::ShardedTensor& wanted) const override {
    for (const auto& [part, copy] : parts_)
      if (part.name == wanted.name && part.offset == wanted.offset && part.local.sizes() == wanted.local.sizes())
        wanted.local.copy_(copy);
  }

 private:
  std::vector<std::pair<parallel::ShardedTensor, at::Tensor>> parts_;
};

TEST(TrainerResume, ContinuesBitForBit) {
  const auto samples = random_sequences(14, 512);
  TrainerCase how{.dp = 2};
  how.args.batch.micro_batch_size = 2;
  how.args.run.max_steps = 6;
  how.args.optimizer.use_distributed_optimizer = true;
  how.args.schedule.lr_scheduler_type = config::HfScheduler::kLinear;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    const auto numbered = [&] {
      train::TrainerSetup setup;
      setup.train_data = train::numbered_data(dataset_of(samples), {.size = 14, .shuffle = true}, r.collator);
      return setup;
    };
    std::vector<at::Tensor> initial;
    for (const nn::Parameter* p : r.models.parameters()) initial.push_back(p->value.detach().clone());
    auto whole = std::make_unique<train::Trainer>(r.models, r.settings(), numbered());
    whole->train();
    const train::TrainerState expected = whole->state();
    whole.reset();

    for (size_t i = 0; i < initial.size(); ++i) {
      const at::NoGradGuard no_grad;
      r.models.parameters()[i]->value.copy_(initial[i]);
    }
    // The first half, ended by the flag: the schedule is that of the whole.
    train::StopFlag flag;
    train::TrainerSetup half = numbered();
    half.stop = &flag;
    half.callbacks.push_back(std::make_unique<StopAt>(flag, 3));
    auto first = std::make_unique<train::Trainer>(r.models, r.settings(), std::move(half));
    EXPECT_EQ(first->train().global_step, 3);
    train::OptimizedModel& stopped = *first->optimized_model();
    const KeptState kept(stopped.optimizer());
    const std::string progress = stopped.optimizer().progress_json();
    const optim::SchedulerState schedule = stopped.scheduler().state();
    train::TrainerSetup rest = numbered();
    rest.resume = train::ResumePoint{first->state(), first->data_position(), [&](train::OptimizedModel& model) {
                                       model.optimizer().load_state(kept, progress);
                                       model.scheduler().load(schedule);
                                     }};
    first.reset();
    train::Trainer second(r.models, r.settings(), std::move(rest));
    EXPECT_EQ(second.train().global_step, 6);
    EXPECT_EQ(second.state().epoch, expected.epoch);
    for (const char* key : {"loss", "grad_norm", "learning_rate"})
      for (size_t i = 3; i < 6; ++i)  // one more line: the totals of the first half
        EXPECT_EQ(second.state().log_history[i + 1].find(key), expected.log_history[i].find(key)) << key << " " << i;
  });
}

// ---- Traces ----

TEST(TrainerTrace, ShowsThePhasesOfAStep) {
  TrainerCase how{.pp = 2};
  how.args.run.max_steps = 1;
  how.args.batch.micro_batch_size = 2;
  how.args.batch.gradient_accumulation_steps = 3;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    TraceRecorder trace;
    trace.set_timing_level(2);
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(8, 512)));
    setup.trace = &trace;
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    trainer.train();
    std::map<std::string, int64_t> counts;
    for (const auto& total : trace.take_totals()) counts[total.name] = total.count;
    EXPECT_EQ(counts["forward-compute"], 3);
    EXPECT_EQ(counts["backward-compute"], 3);
    for (const char* name : {"batch-generator", "forward-backward", "all-grads-sync", "optimizer"})
      EXPECT_EQ(counts[name], 1) << name;
  });
}

}  // namespace
}  // namespace megalith::testing
