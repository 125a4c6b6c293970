// When a run logs, evaluates, saves and stops: the steps of made-up runs, by settings, without a model.
#include "megalith/train/report/intervals.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/expect.h"

namespace megalith::train {
namespace {

using config::Interval;
using testing::expect_error;

// The steps at which a run of max_steps would log, evaluate and save, and the one after which it stops.
struct Flow {
  std::vector<int64_t> logs, evaluations, saves;
  int64_t last = 0;
};

Flow flow_of(const TrainerSettings& settings, int64_t max_steps) {
  TrainerState state;
  state.max_steps = max_steps;
  resolve_intervals(settings, state);
  TrainerControl control;
  CallbackList list;
  list.add(std::make_unique<FlowCallback>());
  Flow flow;
  for (int64_t step = 1; step <= 2 * max_steps && !control.should_training_stop; ++step) {
    TrainerEvent event{settings, state, control};
    list.call(&TrainerCallback::on_step_begin, event);
    state.global_step = step;
    list.call(&TrainerCallback::on_step_end, event);
    if (control.should_log) flow.logs.push_back(step);
    if (control.should_evaluate) flow.evaluations.push_back(step);
    if (control.should_save) flow.saves.push_back(step);
    flow.last = step;
  }
  return flow;
}

TrainerSettings saving() {
  TrainerSettings settings;
  settings.save.output_dir = "trainer_output";
  return settings;
}

using Steps = std::vector<int64_t>;

TEST(FlowCallback, Steps) {
  TrainerSettings settings = saving();
  settings.log.steps = 3;
  settings.eval.strategy = Interval::kSteps;
  settings.eval.steps = 4;
  settings.save.steps = 5;
  const Flow flow = flow_of(settings, 11);
  EXPECT_EQ(flow.logs, (Steps{3, 6, 9}));
  EXPECT_EQ(flow.evaluations, (Steps{4, 8}));
  EXPECT_EQ(flow.saves, (Steps{5, 10, 11}));
  EXPECT_EQ(flow.last, 11);
}

TEST(FlowCallback, FractionsFirstStepAndDelay) {
  TrainerSettings settings = saving();
  settings.log.steps = 0.24;  // 0.24 of 10 steps is 2.4, so every 3
  settings.log.first_step = true;
  settings.eval.strategy = Interval::kSteps;
  settings.eval.steps = 0.2;
  settings.eval.delay = 5;
  settings.save.steps = 0.5;
  const Flow flow = flow_of(settings, 10);
  EXPECT_EQ(flow.logs, (Steps{1, 3, 6, 9}));
  EXPECT_EQ(flow.evaluations, (Steps{6, 8, 10}));
  EXPECT_EQ(flow.saves, (Steps{5, 10}));
}

TEST(FlowCallback, NothingWhenNothingIsAskedFor) {
  TrainerSettings settings = saving();
  settings.log.strategy = settings.eval.strategy = settings.save.strategy = Interval::kNo;
  const Flow flow = flow_of(settings, 3);
  EXPECT_EQ(flow.logs, Steps{});
  EXPECT_EQ(flow.evaluations, Steps{});
  EXPECT_EQ(flow.saves, Steps{});
  EXPECT_EQ(flow.last, 3);
}

TEST(FlowCallback, ExitInterval) {
  TrainerSettings settings = saving();
  settings.log.first_step = true;
  settings.log.steps = 4;
  settings.save.steps = 4;
  settings.length.exit_interval = 7;
  Flow flow = flow_of(settings, 20);
  EXPECT_EQ(flow.logs, (Steps{1, 4}));
  EXPECT_EQ(flow.saves, (Steps{4, 7}));
  EXPECT_EQ(flow.last, 7);
  settings.save.output_dir.clear();
  EXPECT_EQ(flow_of(settings, 20).saves, Steps{});
}

TEST(FlowCallback, Epochs) {
  TrainerSettings settings = saving();
  settings.log.strategy = settings.eval.strategy = settings.save.strategy = Interval::kEpoch;
  settings.eval.delay = 2;
  EXPECT_EQ(flow_of(settings, 3).saves, Steps{});
  TrainerState state;
  TrainerControl control;
  TrainerEvent event{settings, state, control};
  state.epoch = 1;
  FlowCallback().on_epoch_end(event);
  EXPECT_EQ(control, (TrainerControl{.should_save = true, .should_evaluate = false, .should_log = true}));
  state.epoch = 2;
  FlowCallback().on_epoch_end(event);
  EXPECT_TRUE(control.should_evaluate);
}

TEST(NoteEvaluation, KeepsTheBest) {
  TrainerSettings settings = saving();
  TrainerState state;
  TrainerControl control;
  EXPECT_FALSE(note_evaluation(settings, {{"eval_loss", 1}}, state, control));
  settings.eval.tracks_best = true;
  settings.save.strategy = Interval::kBest;
  state.global_step = 10;
  EXPECT_TRUE(note_evaluation(settings, {{"eval_loss", 2}}, state, control));
  EXPECT_TRUE(control.should_save);
  control = {};
  state.global_step = 20;
  EXPECT_FALSE(note_evaluation(settings, {{"eval_loss", 2}}, state, control));
  EXPECT_FALSE(note_evaluation(settings, {{"eval_loss", std::nan("")}}, state, control));
  EXPECT_FALSE(control.should_save);
  EXPECT_EQ(state.best_global_step, 10);
  state.global_step = 30;
  EXPECT_TRUE(note_evaluation(settings, {{"eval_loss", 1.5}}, state, control));
  EXPECT_EQ(state.best_metric, 1.5);
  EXPECT_EQ(state.best_global_step, 30);
  state.best_metric = std::nan("");
  EXPECT_TRUE(note_evaluation(settings, {{"eval_loss", 1.75}}, state, control));
}

TEST(NoteEvaluation, NamesTheMetricsThatThereAre) {
  TrainerSettings settings = saving();
  settings.eval.tracks_best = true;
  settings.eval.best_metric = {"eval_bleu", true};
  TrainerState state;
  TrainerControl control;
  expect_error<ConfigError>(
      [&] {
        note_evaluation(settings, {{"eval_loss", 1}, {"eval_perplexity", 2}}, state, control);
      },
      {"metric_for_best_model", "eval_bleu", "eval_loss and eval_perplexity"});
}

// Evaluates once a value; true where the run would stop.
std::vector<bool> stops(EarlyStoppingCallback& callback, TrainerState& state, const std::vector<double>& losses) {
  TrainerSettings settings = saving();
  settings.eval.tracks_best = true;
  std::vector<bool> result;
  for (const double loss : losses) {
    TrainerControl control;
    TrainerEvent event{settings, state, control, {{"eval_loss", loss}}};
    callback.on_evaluate(event);
    note_evaluation(settings, event.metrics, state, control);
    result.push_back(control.should_training_stop);
  }
  return result;
}

TEST(EarlyStopping, AfterSoManyWithoutGain) {
  EarlyStoppingCallback callback(2, 0.1);
  TrainerState state;
  // The third is better by too little and counts as no gain; NaN never is one.
  EXPECT_EQ(stops(callback, state, {5, 4, 3.95, 3, 3.5, std::nan("")}),
            (std::vector<bool>{false, false, false, false, false, true}));
}

TEST(EarlyStopping, CountsOnAfterAResume) {
  EarlyStoppingCallback before(3);
  TrainerState state;
  stops(before, state, {5, 6, 7});
  EarlyStoppingCallback after(3);
  after.restore(before.record().value());
  EXPECT_EQ(stops(after, state, {8}), std::vector<bool>{true});
}

}  // namespace
}  // namespace megalith::train
