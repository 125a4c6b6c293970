// trainer_state.json and its metrics: order, precision and keys as transformers writes them, read back, and refused
// when they are not such a file.
#include "megalith/train/report/trainer_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "megalith/io/file_io.h"
#include "megalith/io/json_text.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/report/metric_list.h"
#include "megalith/train/settings/trainer_settings.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::train {
namespace {

using testing::expect_error;
using testing::TempFolder;

TEST(MetricList, KeepsOrderAndReplacesInPlace) {
  MetricList list{{"loss", 1.5}, {"grad_norm", 2}};
  list.set("learning_rate", 1e-4);
  list.set("loss", 0.5);
  EXPECT_EQ(list, (MetricList{{"loss", 0.5}, {"grad_norm", 2}, {"learning_rate", 1e-4}}));
  EXPECT_EQ(list.find("grad_norm"), 2);
  EXPECT_EQ(list.find("absent"), std::nullopt);
  list.erase("grad_norm");
  EXPECT_EQ(list.size(), 2U);
}

TEST(MetricList, JsonHasFullPrecisionAndNoNan) {
  const MetricList list{{"step", 10},
                        {"loss", 0.1 + 0.2},
                        {"epoch", 1},
                        {"skipped_iter", 0},
                        {"learning_rate", 1e-5},
                        {"bad", std::nan("")},
                        {"worse", -std::numeric_limits<double>::infinity()}};
  EXPECT_EQ(list.to_json().dump(),
            R"({"step":10,"loss":0.30000000000000004,"epoch":1.0,"skipped_iter":0,"learning_rate":1e-05,)"
            R"("bad":null,"worse":null})");
  const MetricList back = MetricList::from_json(list.to_json());
  EXPECT_EQ(back.find("loss"), 0.1 + 0.2);
  EXPECT_TRUE(std::isnan(back.find("bad").value()));
}

TrainerState some_state() {
  TrainerState state;
  state.epoch = 1.25;
  state.global_step = 50;
  state.max_steps = 120;
  state.logging_steps = 10;
  state.eval_steps = 25;
  state.save_steps = 50;
  state.train_batch_size = 2;
  state.num_train_epochs = 3;
  state.num_input_tokens_seen = 4096;
  state.total_flos = 1.5e12;
  state.log_history = {{{"epoch", 0.5}, {"loss", 2.5}, {"step", 20}},
                       {{"epoch", 1.25}, {"eval_loss", 2.25}, {"step", 50}}};
  state.best_metric = 2.25;
  state.best_global_step = 50;
  state.best_model_checkpoint = "out/checkpoint-50";
  state.stateful_callbacks = {
      {"EarlyStoppingCallback", {{"early_stopping_patience", 3}}, {{"early_stopping_patience_counter", 1}}}};
  return state;
}

// As transformers writes it (4.57), with what Megalith has no use for.
constexpr const char* kHfFile = R"({
  "best_global_step": null,
  "best_metric": null,
  "best_model_checkpoint": null,
  "epoch": 0.5,
  "eval_steps": 500,
  "global_step": 4,
  "is_hyper_param_search": false,
  "is_local_process_zero": true,
  "is_world_process_zero": true,
  "log_history": [{"epoch": 0.25, "grad_norm": 1.5, "learning_rate": 5e-05, "loss": 10.3, "step": 2}],
  "logging_steps": 2,
  "max_steps": 8,
  "num_input_tokens_seen": 0,
  "num_train_epochs": 1,
  "save_steps": 0.5,
  "stateful_callbacks": {
    "TrainerControl": {"args": {"should_epoch_stop": false, "should_log": true}, "attributes": {}},
    "Several": [{"args": {}, "attributes": {}}]
  },
  "total_flos": 17.0,
  "train_batch_size": 2,
  "trial_name": null,
  "trial_params": null
})";

TEST(TrainerState, JsonIsReadBack) {
  const TrainerState state = some_state();
  EXPECT_EQ(TrainerState::from_json(state.to_json(), "state"), state);
  EXPECT_EQ(TrainerState::from_json(TrainerState{}.to_json(), "state"), TrainerState{});
}

TEST(TrainerState, HasTheKeysOfHuggingFaceInTheirOrder) {
  const auto theirs = nlohmann::ordered_json::parse(kHfFile);
  const auto ours = some_state().to_json();
  std::vector<std::string> their_keys, our_keys;
  for (const auto& [key, value] : theirs.items()) their_keys.push_back(key);
  for (const auto& [key, value] : ours.items()) our_keys.push_back(key);
  EXPECT_EQ(our_keys, their_keys);
  EXPECT_EQ(ours["log_history"][0].dump(), R"({"epoch":0.5,"loss":2.5,"step":20})");
  EXPECT_EQ(ours["stateful_callbacks"].dump(), R"({"EarlyStoppingCallback":{"args":{"early_stopping_patience":3},)"
                                               R"("attributes":{"early_stopping_patience_counter":1}}})");
}

TEST(TrainerState, ReadsAFileOfHuggingFace) {
  const TrainerState state = TrainerState::from_json(nlohmann::ordered_json::parse(kHfFile), "trainer_state.json");
  EXPECT_EQ(state.global_step, 4);
  EXPECT_EQ(state.epoch, 0.5);
  EXPECT_EQ(state.max_steps, 8);
  EXPECT_EQ(state.log_history.at(0).find("loss"), 10.3);
  ASSERT_NE(state.find_callback("TrainerControl"), nullptr);
  EXPECT_EQ(state.find_callback("TrainerControl")->args.find("should_log"), 1);
  EXPECT_EQ(state.find_callback("Several"), nullptr);
}

TEST(TrainerState, AFileIsReadBack) {
  const TempFolder folder;
  const TrainerState state = some_state();
  state.save(folder / "trainer_state.json");
  EXPECT_EQ(TrainerState::load(folder / "trainer_state.json"), state);
  EXPECT_FALSE(std::filesystem::exists(folder / "trainer_state.json.tmp"));
}

TEST(TrainerState, RefusesWhatIsNotAState) {
  const TempFolder folder;
  const auto file = folder / "trainer_state.json";
  const auto load = [&](const char* text) {
    return [&, text] {
      io::write_text_file(file, text);
      TrainerState::load(file);
    };
  };
  expect_error<DataError>(load(R"({"global_step": "4"})"), {"trainer_state.json", "global_step", "\"4\""});
  expect_error<DataError>(load(R"({"global_step": -1})"), {"global_step", "-1", "0 or more"});
  expect_error<DataError>(load(R"({"save_steps": -1})"), {"save_steps"});
  expect_error<DataError>(load(R"({"log_history": {}})"), {"log_history", "list"});
  expect_error<DataError>(load(R"({"log_history": [1]})"), {"log_history", "list of objects"});
  expect_error<DataError>(load(R"({"stateful_callbacks": []})"), {"stateful_callbacks"});
  expect_error<DataError>(load("{"), {"trainer_state.json"});
  expect_error<DataError>([&] { TrainerState::load(folder / "absent.json"); }, {"absent.json"});
}

// Writes down what it hears.
class Recorder : public TrainerCallback {
 public:
  Recorder(std::string name, std::vector<std::string>& heard) : name_(std::move(name)), heard_(heard) {}
  void on_step_begin(TrainerEvent&) override { heard_.push_back(name_ + " step_begin"); }
  void on_log(TrainerEvent& event) override {
    heard_.push_back(name_ + " log " + event.metrics.to_json().dump());
    event.control.should_training_stop = true;
  }
  std::optional<CallbackRecord> record() const override { return CallbackRecord{name_, {}, {{"heard", count_}}}; }
  void restore(const CallbackRecord& saved) override { count_ = saved.attributes.find("heard").value(); }
  double count_ = 0;

 private:
  std::string name_;
  std::vector<std::string>& heard_;
};

TEST(CallbackList, CallsInOrderAndClearsFlags) {
  std::vector<std::string> heard;
  CallbackList list;
  list.add(std::make_unique<Recorder>("a", heard));
  list.add(std::make_unique<Recorder>("b", heard));
  const TrainerSettings settings;
  TrainerState state;
  TrainerControl control{true, true, true, true, true};
  TrainerEvent event{settings, state, control};
  list.call(&TrainerCallback::on_train_begin, event);
  EXPECT_EQ(control, (TrainerControl{false, true, true, true, true}));
  list.call(&TrainerCallback::on_epoch_begin, event);
  EXPECT_EQ(control, (TrainerControl{false, false, true, true, true}));
  list.call(&TrainerCallback::on_step_begin, event);
  EXPECT_EQ(control, TrainerControl{});
  control = {false, false, true, true, true};
  event.metrics = {{"loss", 1.5}};
  list.call(&TrainerCallback::on_log, event);
  EXPECT_EQ(control, (TrainerControl{true, false, true, true, false}));
  EXPECT_EQ(heard, (std::vector<std::string>{"a step_begin", "b step_begin", R"(a log {"loss":1.5})",
                                             R"(b log {"loss":1.5})"}));
}

TEST(CallbackList, RecordsGoThroughTheState) {
  std::vector<std::string> heard;
  TrainerState state;
  {
    CallbackList list;
    auto one = std::make_unique<Recorder>("one", heard);
    one->count_ = 7;
    list.add(std::move(one));
    list.keep_records(state);
    list.keep_records(state);
  }
  ASSERT_EQ(state.stateful_callbacks.size(), 1U);
  CallbackList list;
  auto one = std::make_unique<Recorder>("one", heard), two = std::make_unique<Recorder>("two", heard);
  const Recorder &first = *one, &second = *two;
  list.add(std::move(one));
  list.add(std::move(two));
  list.restore_records(TrainerState::from_json(state.to_json(), "state"));
  EXPECT_EQ(first.count_, 7);
  EXPECT_EQ(second.count_, 0);
}

}  // namespace
}  // namespace megalith::train
