// pipeline_schedule reaches the trainer: the order of the work changes, the losses do not.
#include <gtest/gtest.h>

#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

TEST(ZeroBubble, TrainsAsOneForwardOneBackwardDoes) {
  TrainerCase how;
  how.pp = 2;
  how.args.batch.micro_batch_size = 2;
  how.args.batch.gradient_accumulation_steps = 4;
  const auto train = random_sequences(32, 50, 3), eval = random_sequences(6, 50, 4);
  const RunLog plain = run_training(golden_folder("llama"), how, train, eval);
  how.args.pipeline.schedule = layout::ScheduleKind::kZeroBubble;
  const RunLog zero_bubble = run_training(golden_folder("llama"), how, train, eval);
  const auto expected = plain.numbers("loss"), found = zero_bubble.numbers("loss");
  ASSERT_EQ(found.size(), 4u);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6 * expected[i]) << "step " << i + 1;
}

}  // namespace
}  // namespace megalith::testing
