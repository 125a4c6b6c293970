// A run that was stopped and continued is the run that was not.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "megalith/checkpoint/manifest.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/config/derive.h"
#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/run_checkpoint.h"
#include "megalith/train/run_progress.h"
#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

// The entries that do not depend on the clock.
std::string text_of(const train::TrainerState& state) {
  static const std::set<std::string> kClock{
      "token_per_sec_per_gpu",  "tokens_per_second",       "train_runtime", "train_samples_per_second",
      "train_steps_per_second", "train_tokens_per_second", "eval_runtime",  "eval_samples_per_second",
      "eval_steps_per_second"};
  std::string text = fmt::format("step {} epoch {} tokens {} flos {} best {} at {}\n", state.global_step, *state.epoch,
                                 state.num_input_tokens_seen, state.total_flos, state.best_metric.value_or(-1),
                                 state.best_global_step.value_or(-1));
  for (const train::MetricList& line : state.log_history) {
    std::map<std::string, double> sorted;  // as a file has them
    for (const auto& [name, value] : line)
      if (!kClock.contains(name)) sorted.emplace(name, value);
    for (const auto& [name, value] : sorted) text += fmt::format(" {} {}", name, value);
    text += "\n";
  }
  for (const train::CallbackRecord& record : state.stateful_callbacks)
    for (const auto& [name, value] : record.attributes) text += fmt::format("{} {} {}\n", record.name, name, value);
  return text;
}

class ResumeBitForBit : public ::testing::TestWithParam<const char*> {};

// Dropout, the middle of an epoch, a line over the save, evaluations with early stopping, a loss scale, shards that are
// gathered late.
TEST_P(ResumeBitForBit, ContinuesAsIfNothingHadHappened) {
  const TempFolder whole, rest;
  const std::string precision = GetParam();
  TrainerCase how{.tp = 2, .pp = 2, .dp = 2};
  how.vpp = 2;
  const auto set = [&](const TempFolder& out) {
    how.args = resume_arguments(out.path(), 6, 3);
    how.args.batch.micro_batch_size = 2;
    how.args.batch.gradient_accumulation_steps = 2;
    how.args.layer.hidden_dropout = 0.2;
    how.args.layer.attention_dropout = 0.1;
    how.args.optimizer.use_distributed_optimizer = true;
    how.args.ddp.overlap_grad_reduce = how.args.ddp.overlap_param_gather = true;
    how.args.logging.steps = 2;
    how.args.eval.strategy = config::Interval::kSteps;
    how.args.eval.steps = 1;
    how.args.eval.metric_for_best_model = "loss";
    how.args.run.early_stopping_steps = 50;
    const bool stored = precision == "fp8_state" || precision == "fp16_state";
    how.args.precision.bf16 = precision == "bf16" || precision == "fp8" || stored;
    how.args.optimizer.use_precision_aware_optimizer = stored;
    if (stored)
      how.args.optimizer.exp_avg_dtype = how.args.optimizer.exp_avg_sq_dtype = precision.substr(0, precision.find('_'));
    if (precision == "fp16_state") how.args.optimizer.main_params_dtype = "fp16";
    if (precision == "fp8") {
      how.args.precision.fp8 = config::Fp8Format::kHybrid;
      how.args.precision.fp8_recipe = "delayed";
      how.args.precision.fp8_amax_history_len = 3;
      how.args.precision.fp8_amax_compute_algo = "max";
    }
    how.args.precision.fp16 = precision == "fp16";
    how.args.precision.initial_loss_scale = 0x1p17;
    how.args.precision.hysteresis = 1;
    how.args.checkpoint.async_save = precision == "bf16" || precision == "fp8_state";
    how.args.checkpoint.files = precision.starts_with("fp16") ? "per_writer" : "shared";
  };
  set(whole);
  const train::TrainerState expected = run_resumable(how, {});
  set(rest);
  const train::TrainerState actual = run_resumable(how, {.checkpoint = whole / "checkpoint-3"});
  EXPECT_EQ(text_of(actual), text_of(expected));
  expect_same_tensors(rest / "checkpoint-6", whole / "checkpoint-6", /*with_rng=*/true);
  EXPECT_EQ(checkpoint::latest_checkpoint(rest.path()), rest / "checkpoint-6");
  EXPECT_EQ(checkpoint::read_manifest(whole / "checkpoint-3").has("fp8"), precision == "fp8");
}

INSTANTIATE_TEST_SUITE_P(Precisions, ResumeBitForBit,
                         ::testing::Values("fp32", "bf16", "fp16", "fp8", "fp8_state", "fp16_state"),
                         [](const auto& test) { return std::string(test.param); });

// The last step of an epoch is saved before the epoch's end is told.
TEST(Resume, AnEpochThatEndsWithTheSaveEndsOnce) {
  const TempFolder whole, rest;
  TrainerCase how;
  const auto set = [&](const TempFolder& out) {
    how.args = resume_arguments(out.path(), 6, 2);  // 2 steps per epoch
    how.args.eval.strategy = config::Interval::kEpoch;
    how.args.eval.metric_for_best_model = "loss";
  };
  set(whole);
  const train::TrainerState expected = run_resumable(how, {});
  set(rest);
  const train::TrainerState actual = run_resumable(how, {.checkpoint = whole / "checkpoint-4"});
  EXPECT_EQ(text_of(actual), text_of(expected));
}

TEST(Resume, TheOutputSaysWhatThisStartDid) {
  const TempFolder whole, rest;
  TrainerCase how;
  train::TrainOutput output;
  how.args = resume_arguments(whole.path(), 3, 2);
  const train::TrainerState state = run_resumable(how, {.output = &output});
  EXPECT_EQ(output.start_step, 0);
  EXPECT_EQ(output.work.steps, 3);
  const int64_t all_samples = output.work.samples, all_tokens = output.work.tokens + output.work.padding;
  EXPECT_EQ(all_tokens, state.num_input_tokens_seen);
  const auto saved = train::TrainerState::load(whole / "checkpoint-2" / "trainer_state.json");
  ASSERT_GT(saved.num_input_tokens_seen, 0);
  ASSERT_LT(saved.num_input_tokens_seen, state.num_input_tokens_seen);
  how.args = resume_arguments(rest.path(), 3, 2);
  run_resumable(how, {.checkpoint = whole / "checkpoint-2", .output = &output});
  EXPECT_EQ(output.global_step, 3);
  EXPECT_EQ(output.start_step, 2);
  EXPECT_EQ(output.work.steps, 1);
  EXPECT_EQ(3 * output.work.samples, all_samples);
  EXPECT_EQ(output.work.tokens + output.work.padding, all_tokens - saved.num_input_tokens_seen);
}

TEST(Resume, ARunThatIsDoneDoesNothing) {
  const TempFolder out;
  TrainerCase how;
  how.args = resume_arguments(out.path(), 2, 1);
  run_resumable(how, {});
  const auto state = run_resumable(how, {.checkpoint = out / "checkpoint-2"});
  EXPECT_EQ(state.global_step, 2);
}

// ---- What has changed ----

class ResumeChanged : public ::testing::Test {
 protected:
  ResumeChanged() {
    how_.args = resume_arguments(out_.path(), 4, 1);
    how_.args.run.exit_interval = 3;
    run_resumable(how_, {});
    how_.args.run.exit_interval.reset();
  }
  fs::path at(int step) const { return out_.path() / checkpoint::folder_name(step); }
  template <typename E>
  void expect_refused(const ResumeRun& run, const std::vector<std::string>& parts) {
    run_ranks(1, [&](const Rank&) { expect_error<E>([&] { run_here(run); }, parts); });
  }
  // On this thread, so that exceptions come through.
  void run_here(const ResumeRun& run) {
    const config::TrainingArguments args = how_.effective();
    const auto worlds = comm::World::in_process(1);
    parallel::ParallelContext context(*worlds[0], layout::RankGrid(config::grid_shape(args, 1)));
    model::VirtualModels models =
        model::AutoModel::with_weights(model::read_model_config(golden_folder("llama")), *run.checkpoint,
                                       run::model_settings(args, context.device()), context);
    const auto samples = run.samples.empty() ? random_sequences(20, 200) : run.samples;
    train::TrainerSetup setup;
    setup.train_data = train::numbered_data(dataset_of(samples),
                                            {.size = static_cast<int64_t>(samples.size()), .shuffle = true, .seed = 5},
                                            data::Collator(data::CollatorOptions{}));
    setup.resume =
        train::read_resume_point(*run.checkpoint, run::trainer_settings(args, context.grid().shape()), context);
    train::Trainer(models, run::trainer_settings(args, models.context().grid().shape()), std::move(setup)).train();
  }

  TempFolder out_;
  TrainerCase how_;
};

TEST_F(ResumeChanged, OtherDataIsRefusedUnlessTheEpochStartsAgain) {
  const ResumeRun other{.checkpoint = at(3), .samples = random_sequences(24, 200)};
  expect_refused<ConfigError>(other,
                              {"it had 20 samples and now has 24", "8 samples into epoch 1", "ignore_data_skip"});
  how_.args.sampler.ignore_data_skip = true;
  EXPECT_EQ(run_resumable(how_, other).global_step, 4);
}

TEST_F(ResumeChanged, IgnoreDataSkipStartsTheEpochAgain) {
  how_.args.sampler.ignore_data_skip = true;
  run_resumable(how_, {.checkpoint = at(3), .ended = [](train::Trainer& trainer) {
                         EXPECT_EQ(trainer.data_position().position, (data::SamplerPosition{1, 8}));
                         EXPECT_EQ(trainer.data_position().consumed_samples, 32);
                       }});
  how_.args.sampler.ignore_data_skip = false;
  run_resumable(how_, {.checkpoint = at(3), .ended = [](train::Trainer& trainer) {
                         EXPECT_EQ(trainer.data_position().position, (data::SamplerPosition{1, 16}));
                       }});
}

TEST_F(ResumeChanged, AnotherBatchSizeContinuesAfterTheSamplesSeen) {
  how_.args.batch.micro_batch_size = 4;
  run_resumable(how_, {.checkpoint = at(3), .ended = [](train::Trainer& trainer) {
                         EXPECT_EQ(trainer.state().global_step, 4);
                         EXPECT_EQ(trainer.data_position().consumed_samples, 28);
                         EXPECT_EQ(trainer.data_position().position, (data::SamplerPosition{1, 12}));
                       }});
}

TEST_F(ResumeChanged, AnotherScheduleOrOptimizerIsRefused) {
  how_.args.run.max_steps = 9;
  expect_refused<ConfigError>({.checkpoint = at(3)}, {"lr_decay_steps"});
  how_.args.run.max_steps = 4;
  how_.args.optimizer.optimizer = config::OptimizerKind::kSgd;
  how_.args.optimizer.optim = config::HfOptimizer::kSgd;
  expect_refused<ConfigError>({.checkpoint = at(3)}, {"optimizer", "adam", "sgd"});
}

TEST_F(ResumeChanged, OptionsThatChangedAreNamed) {
  EXPECT_EQ(train::changed_options("learning_rate: 0.1\nseed: 4\noutput_dir: a\nold: 1\n",
                                   "learning_rate: 0.2\nseed: 4\noutput_dir: b\nnew: 2\n"),
            (std::vector<std::string>{"learning_rate: 0.1, now 0.2", "new: not set, now 2", "old: 1, now not set"}));
}

// ---- What is kept ----

TEST(SavePoints, OldOnesGoAndTheBestStays) {
  const TempFolder out;
  TrainerCase how{.dp = 2};
  how.args = resume_arguments(out.path(), 5, 1);
  how.args.batch.micro_batch_size = 4;
  how.args.optimizer.learning_rate = 0.5;  // the first evaluation is the best
  how.args.eval.strategy = config::Interval::kSteps;
  how.args.eval.steps = 1;
  how.args.eval.metric_for_best_model = "loss";
  how.args.save.total_limit = 2;
  const auto state = run_resumable(how, {});
  const std::string best = checkpoint::folder_name(*state.best_global_step);
  ASSERT_NE(best, "checkpoint-5");
  EXPECT_EQ(names_in(out.path()), (std::vector<std::string>{best, "checkpoint-5", "latest"}));
}

// As Megatron does: the last step of a batch size is saved, whatever the interval.
TEST(SavePoints, OneIsWrittenBeforeTheBatchGrows) {
  const TempFolder out;
  TrainerCase how;
  how.args = resume_arguments(out.path(), 4, 100);
  how.args.batch.micro_batch_size = 2;
  how.args.batch.gradient_accumulation_steps = 1;
  how.args.batch.global_batch_size = 4;
  how.args.batch.rampup_batch_size = {2, 2, 4};
  run_resumable(how, {});
  // Sizes 2 2 4 4; the last step is always saved.
  EXPECT_TRUE(std::filesystem::exists(out / "checkpoint-2"));
  EXPECT_FALSE(std::filesystem::exists(out / "checkpoint-1") || std::filesystem::exists(out / "checkpoint-3"));
}

TEST(SavePoints, AModelAloneIsNotARun) {
  const TempFolder out;
  TrainerCase how;
  how.args = resume_arguments(out.path(), 2, 2);
  how.args.save.only_model = true;
  run_resumable(how, {});
  const checkpoint::Manifest manifest = checkpoint::read_manifest(out / "checkpoint-2");
  EXPECT_EQ(manifest.holds, std::vector<std::string>{"model"});
  const auto worlds = comm::World::in_process(1);
  const auto args = how.effective();
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(config::grid_shape(args, 1)));
  model::VirtualModels models = model::AutoModel::from_pretrained((out / "checkpoint-2").string(),
                                                                  run::model_settings(args, context.device()), context);
  train::TrainerSetup setup;
  setup.train_data =
      train::numbered_data(dataset_of(random_sequences(20, 200)), {.size = 20, .shuffle = true, .seed = 5},
                           data::Collator(data::CollatorOptions{}));
  setup.resume =
      train::read_resume_point(out / "checkpoint-2", run::trainer_settings(args, context.grid().shape()), context);
  train::Trainer trainer(models, run::trainer_settings(args, models.context().grid().shape()), std::move(setup));
  expect_error<DataError>([&] { trainer.train(); }, {"holds no optimizer state", "model_name_or_path"});
}

TEST(RunProgress, IsReadBack) {
  train::RunProgress progress;
  progress.optimizer = R"({"optimizer":"adam","step":3})";
  progress.scheduler = progress.scaler = "{}";
  progress.data = {{2, 5}, 100};
  progress.sampler = data::SamplerOptions{.size = 7, .shuffle = false, .seed = 9, .end = data::EpochEnd::kStop};
  progress.log.updated = {2, {"", std::nan(""), 3}, {{"accuracy", 0.1, 4}}};
  progress.log.skipped = {3, {"", 7, 2}, {{"accuracy", 0.2, 4}}};
  progress.log.nan_steps = 1;
  progress.epoch_end_pending = true;
  const std::string text = progress.to_json();
  EXPECT_EQ(train::RunProgress::from_json(text, "f").to_json(), text);
  nlohmann::json older = nlohmann::json::parse(text);  // from before skipped steps had sums of their own
  for (const char* key : {"skipped", "nan_steps"}) EXPECT_EQ(older.at("log").erase(key), 1U);
  const train::TrainingLog::Totals read = train::RunProgress::from_json(older.dump(), "f").log;
  EXPECT_EQ(read.updated.steps, 2);
  EXPECT_EQ(read.skipped.steps, 0);
  EXPECT_EQ(read.nan_steps, 0);
  std::string broken = text;
  broken.replace(broken.find("\"consumed\": 5"), 13, "\"consumed\": -5");
  expect_error<DataError>([&] { train::RunProgress::from_json(broken, "the-file"); }, {"the-file", "consumed", "-5"});
  expect_error<DataError>([&] { train::RunProgress::from_json("{}", "the-file"); }, {"the-file", "optimizer"});
}

// A file stands where the checkpoint of step 2 should: that one is lost, and nothing else.
TEST(FailedSave, TrainingContinues) {
  for (const bool in_background : {false, true}) {
    SCOPED_TRACE(in_background ? "in the background" : "at once");
    const TempFolder out, undisturbed;
    TrainerCase how{.dp = 2};
    how.args = resume_arguments(undisturbed.path(), 4, 1);
    run_resumable(how, {});
    std::ofstream(out / "checkpoint-2") << "in the way";
    how.args = resume_arguments(out.path(), 4, 1);
    how.args.checkpoint.async_save = in_background;
    const train::TrainerState state = run_resumable(how, {});
    EXPECT_EQ(state.global_step, 4);
    EXPECT_TRUE(fs::is_regular_file(out / "checkpoint-2"));
    for (const char* name : {"checkpoint-1", "checkpoint-3", "checkpoint-4"})
      expect_same_tensors(out / name, undisturbed / name, /*with_rng=*/true);
    for (const auto& entry : fs::directory_iterator(out.path()))
      EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace megalith::testing
