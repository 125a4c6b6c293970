// Against the schedulers of transformers: tests/data/optim/hf_schedules.json, made by the script beside it.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/config/derive.h"
#include "megalith/config/parser.h"
#include "megalith/config/validate.h"
#include "megalith/run/resolve/schedule.h"

namespace megalith::run {
namespace {

using nlohmann::json;
using optim::RunSchedule;
using optim::ScheduleUnit;

// Theirs multiplies the peak by a factor, ours interpolates between floor and peak: the last digits differ, and near
// the end of a cosine they are digits of the peak.
constexpr double kTolerance = 1e-14;

TEST(HfSchedules, every_rate_is_that_of_hugging_face) {
  std::ifstream stream("tests/data/optim/hf_schedules.json");
  const json file = json::parse(stream);
  ASSERT_FALSE(file.at("cases").empty());
  const auto peak = file.at("learning_rate").get<double>();
  for (const json& c : file.at("cases")) {
    SCOPED_TRACE(c.at("theirs").dump() + " warm-up " + c.at("warmup_steps").dump());
    const std::vector<std::string> words{
        "--lr_scheduler_type=" + c.at("lr_scheduler_type").get<std::string>(),
        "--lr_scheduler_kwargs=" + c.at("lr_scheduler_kwargs").dump(), "--warmup_steps=" + c.at("warmup_steps").dump(),
        "--learning_rate=" + file.at("learning_rate").dump(), "--max_steps=" + file.at("max_steps").dump()};
    const auto parsed = config::parse_arguments(config::Dialect::kTrain, words);
    parsed.report.check_not_refused();
    config::validate(parsed.args, {.needs_inputs = false});
    const RunSchedule run =
        make_schedule(parsed.args, layout::MicrobatchCalculator(config::batch_plan(parsed.args, 1)));
    EXPECT_EQ(run.unit, ScheduleUnit::kSteps);
    int64_t step = 0;
    for (const json& rate : c.at("lr")) {
      EXPECT_NEAR(run.schedule.lr(step), rate.get<double>(), kTolerance * peak) << "step " << step;
      ++step;
    }
  }
}

}  // namespace
}  // namespace megalith::run
