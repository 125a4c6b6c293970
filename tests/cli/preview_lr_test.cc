// `megalith preview lr` in this process: its table, curve and JSON against the golden schedules, and its errors.
#include <algorithm>
#include <cmath>
#include <fstream>

#include "tests/cli/preview_support.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::cli {
namespace {

using layout::golden_list;
using nlohmann::json;

json lr_schedule_file() { return testing::golden_json("parallel/lr_schedule.json"); }

void add_word(std::vector<std::string>& words, const std::string& name, const json& value) {
  if (value.is_null() || value == false) return;
  words.push_back("--" + name);
  for (const json& item : value.is_array() ? value : json::array({value}))
    words.push_back(item.is_string() ? item.get<std::string>() : item.dump());
}

// With a constant weight decay the golden file gives both ends, the command line one value.
void add_weight_decay(std::vector<std::string>& words, const json& style, const json& start, const json& end) {
  add_word(words, "weight_decay_incr_style", style);
  if (style == "constant") return add_word(words, "weight_decay", start);
  add_word(words, "start_weight_decay", start);
  add_word(words, "end_weight_decay", end);
}

void expect_rows(const json& shown, const json& golden) {
  ASSERT_EQ(shown.size(), golden.size());
  for (size_t i = 0; i < golden.size(); ++i) {
    EXPECT_EQ(shown[i][0], golden[i][0]);
    for (size_t k = 1; k < 3; ++k)
      EXPECT_NEAR(shown[i][k].get<double>(), golden[i][k].get<double>(), 1e-12 * std::abs(golden[i][k].get<double>()))
          << "row " << i;
  }
}

// The cases that a run can have: one group, steps of one size.
TEST(GoldenPreviewLr, lr_schedule_json_cases) {
  int compared = 0;
  for (const json& c : golden_list(lr_schedule_file(), "cases")) {
    const json& params = c.at("params");
    SCOPED_TRACE(c.at("name").dump() + params.dump());
    const json& increments = c.at("increments");
    const auto steps = static_cast<int64_t>(increments.size());
    const auto size = increments.at(0).get<int64_t>();
    const bool one_size = std::ranges::all_of(increments, [&](const json& i) { return i == size; });
    const bool by_steps = params.at("lr_decay_steps").get<int64_t>() % size == 0 &&
                          params.at("lr_warmup_steps") == std::floor(params.at("lr_warmup_steps").get<double>());
    // The command line has no length of its own for weight decay: it is the run's.
    const bool decay_of_run = params.at("wd_incr_style") == "constant";
    if (!one_size || !by_steps || !decay_of_run || c.at("param_groups").size() != 1) continue;
    std::vector<std::string> words{"lr", "--json", "--train_iters", std::to_string(steps), "--micro_batch_size=1"};
    add_word(words, "global_batch_size", size);
    add_word(words, "lr", params.at("max_lr"));
    add_word(words, "min_lr", params.at("min_lr"));
    add_word(words, "lr_warmup_init", params.at("init_lr"));
    add_word(words, "lr_warmup_iters", params.at("lr_warmup_steps").get<int64_t>() / size);
    add_word(words, "lr_decay_iters", params.at("lr_decay_steps").get<int64_t>() / size);
    add_word(words, "lr_decay_style", params.at("lr_decay_style"));
    add_word(words, "lr_wsd_decay_iters", params.at("wsd_decay_steps"));
    add_word(words, "lr_wsd_decay_style", params.at("lr_wsd_decay_style"));
    add_weight_decay(words, params.at("wd_incr_style"), params.at("start_wd"), params.at("end_wd"));
    const Answer answer = preview(words);
    ASSERT_EQ(answer.exit_code, kDone) << answer.error;
    const json shown = answer.json();
    EXPECT_EQ(shown.at("increments"), increments);
    expect_rows(shown.at("trace"), c.at("trace"));
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

TEST(GoldenPreviewLr, lr_schedule_json_from_args) {
  for (const json& c : golden_list(lr_schedule_file(), "from_args")) {
    SCOPED_TRACE(c.dump());
    const json& args = c.at("args");
    std::vector<std::string> words{"lr", "--json"};
    for (const auto& [key, value] : args.items())
      if (!key.ends_with("weight_decay") && key != "weight_decay_incr_style") add_word(words, key, value);
    add_weight_decay(words, args.at("weight_decay_incr_style"), args.at("start_weight_decay"),
                     args.at("end_weight_decay"));
    const Answer answer = preview(words);
    ASSERT_EQ(answer.exit_code, kDone) << answer.error;
    const json shown = answer.json();
    EXPECT_EQ(shown.at("resolved"), c.at("resolved"));
    EXPECT_EQ(shown.at("train_iters"), c.at("train_iters"));
    EXPECT_EQ(shown.at("trace").size(), c.at("train_iters").get<size_t>() + 1);
  }
}

TEST(PreviewLr, names_of_hugging_face_count_steps) {
  const json shown =
      preview("lr --max_steps 10 --learning_rate 1e-3 --warmup_steps 2 --global_batch_size 8 --json").json();
  EXPECT_EQ(shown.at("unit"), "steps");
  EXPECT_EQ(shown.at("resolved").at("lr_decay_steps"), 10);
  EXPECT_EQ(shown.at("trace").at(1), json::parse("[1, 0.0005, 0.0]"));
  EXPECT_EQ(shown.at("state").at("num_steps"), 10);
  EXPECT_EQ(shown.at("params"), shown.at("resolved"));
}

TEST(PreviewLr, the_dialect_may_be_said) {
  const json steps = preview("lr --dialect train --train_iters 10 --lr 1e-3 --global_batch_size 8 --json").json();
  EXPECT_EQ(steps.at("resolved").at("lr_decay_steps"), 10);
  const json samples = preview("lr --dialect pretrain --max_steps 10 --lr 1e-3 --global_batch_size 8 --json").json();
  EXPECT_EQ(samples.at("resolved").at("lr_decay_steps"), 80);
  EXPECT_EQ(samples.at("resolved").at("start_wd"), 0.01);
  EXPECT_TRUE(contains(preview("lr --dialect hf --max_steps 10").error, "dialect is \"hf\""));
}

TEST(PreviewLr, a_file_of_options) {
  const testing::TempFolder folder;
  const std::string path = (folder.path() / "run.yaml").string();
  std::ofstream(path) << "max_steps: 4\nlearning_rate: 1.0e-3\nlr_scheduler_type: cosine_with_min_lr\n"
                         "lr_scheduler_kwargs:\n  min_lr: 1.0e-4\n";
  const json shown = preview(std::vector<std::string>{"lr", path, "--json"}).json();
  EXPECT_EQ(shown.at("trace").size(), 5U);
  EXPECT_DOUBLE_EQ(shown.at("trace").back().at(1).get<double>(), 1e-4);
}

TEST(PreviewLr, a_growing_batch_is_followed) {
  const json shown = preview(
                         "lr --train_samples 400 --lr 1e-3 --micro_batch_size 1 --global_batch_size 32 "
                         "--rampup_batch_size 8 8 60 --json")
                         .json();
  int64_t consumed = 0;
  for (size_t i = 0; i < shown.at("increments").size(); ++i) {
    EXPECT_EQ(shown.at("trace").at(i).at(0), consumed);
    consumed += shown.at("increments").at(i).get<int64_t>();
  }
  EXPECT_EQ(shown.at("increments").front(), 8);
  EXPECT_EQ(shown.at("increments").back(), 32);
  EXPECT_EQ(shown.at("trace").back().at(0), consumed);
}

TEST(PreviewLr, decoupled_rates_are_a_second_group) {
  const std::string words = "lr --train_iters 4 --lr 1e-3 --decoupled_lr 2e-3 --decoupled_min_lr 1e-5";
  const json shown = preview(words + " --json").json();
  EXPECT_EQ(shown.at("param_groups"), json::parse(R"([{}, {"max_lr": 2e-3, "min_lr": 1e-5}])"));
  EXPECT_EQ(shown.at("trace").at(0).size(), 5U);
  EXPECT_DOUBLE_EQ(shown.at("trace").back().at(3).get<double>(), 1e-5);
  EXPECT_TRUE(contains(preview(words).out, "embed., head"));
}

TEST(PreviewLr, a_long_run_shows_every_nth_step) {
  const json shown = preview("lr --max_steps 250000000 --json").json();
  EXPECT_EQ(shown.at("every"), 2500);
  EXPECT_EQ(shown.at("trace").size(), 100001U);
  EXPECT_EQ(shown.at("trace").back().at(0), 250000000);
}

TEST(PreviewLr, curve_and_table) {
  const std::string out = preview(
                              "lr --train_iters 100 --lr 3e-4 --min_lr 3e-5 --lr_decay_style WSD --lr_warmup_iters 10 "
                              "--lr_wsd_decay_iters 20 --global_batch_size 8 --weight_decay_incr_style linear "
                              "--start_weight_decay 0.01 --end_weight_decay 0.1")
                              .out;
  EXPECT_TRUE(contains(out, "learning rate (WSD) over 100 steps\n    0.0003│")) << out;
  EXPECT_TRUE(contains(out, "\n         0│▁")) << out;
  EXPECT_TRUE(contains(out, "a: warm-up ends after step 10\n")) << out;
  EXPECT_TRUE(contains(out, "b: decay starts after step 80\n")) << out;
  EXPECT_TRUE(contains(out, "c: decay ends after step 100\n")) << out;
  EXPECT_TRUE(contains(out, "weight decay (linear)\n       0.1│")) << out;
  EXPECT_TRUE(contains(out, "          80             640         0.0003         0.082  decay starts\n")) << out;
  EXPECT_TRUE(contains(out, "         100             800          3e-05           0.1  decay ends; the run ends\n"))
      << out;
}

TEST(PreviewLr, errors_name_the_setting) {
  EXPECT_TRUE(contains(preview("lr").error, "max_steps (train_iters) or train_samples"));
  EXPECT_TRUE(contains(preview("lr --train_iters 10").error, "lr is not given"));
  EXPECT_TRUE(contains(preview("lr --max_steps 10 --warmup_steps 10").error, "warmup_steps is 10"));
  EXPECT_TRUE(contains(preview("lr --max_steps 10 --lr nan").error, "lr"));
  EXPECT_TRUE(contains(preview("lr --max_steps 10 --lr=-1").error, "lr"));
  EXPECT_TRUE(contains(preview("lr --train_iters 10 --lr 1e-4 --min_lr 1").error, "min_lr 1"));
  EXPECT_TRUE(contains(preview("lr --max_steps 10 --lr_scheduler_type polynomial").error, "use linear"));
  EXPECT_TRUE(contains(preview("lr --train_iters 10 --lr 1e-4 --lr_decay_style bogus").error, "lr_decay_style"));
  EXPECT_TRUE(contains(preview("lr --train_iters 10 --lr 1 --override_opt_param_scheduler "
                               "--use_checkpoint_opt_param_scheduler")
                           .error,
                       "keep one"));
}

}  // namespace
}  // namespace megalith::cli
