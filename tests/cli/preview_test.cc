#include "tests/cli/preview_support.h"

namespace megalith::cli {
namespace {

TEST(Preview, needs_a_topic) {
  const Answer answer = preview(std::vector<std::string>{});
  EXPECT_TRUE(contains(answer.error, "groups, layers, batch, lr, pipeline and memory")) << answer.error;
  EXPECT_EQ(answer.out, "");
}

TEST(Preview, unknown_topic_lists_the_topics_and_the_nearest) {
  const Answer answer = preview("group --world-size 2");
  EXPECT_TRUE(contains(answer.error, "did you mean groups?")) << answer.error;
  EXPECT_TRUE(contains(answer.error, "layers, batch, lr, pipeline and memory")) << answer.error;
}

TEST(Preview, help_of_all_and_of_each_topic) {
  EXPECT_TRUE(contains(preview("--help").out, "groups"));
  EXPECT_TRUE(contains(preview("groups --help").out, "--world_size"));
  EXPECT_TRUE(contains(preview("groups --help").out, "--tensor_model_parallel_size, --tp"));
  EXPECT_TRUE(contains(preview("layers --help").out, "--pipeline_model_parallel_layout"));
  EXPECT_TRUE(contains(preview("batch --help").out, "--rampup_batch_size"));
  EXPECT_EQ(preview("batch --help").exit_code, kDone);
  EXPECT_TRUE(contains(preview("lr --help").out, "--lr_scheduler_type"));
  EXPECT_TRUE(contains(preview("lr --help").out, "--lr-warmup-samples"));
  EXPECT_TRUE(contains(preview("lr --help").out, "--dialect"));
}

TEST(Preview, unknown_and_refused_options_are_errors) {
  EXPECT_TRUE(contains(preview("groups --world-size 4 --tpp 2").error, "--tpp"));
  EXPECT_TRUE(contains(preview("groups --world-size 4 --ddp_backend hccl").error, "hccl"));
}

}  // namespace
}  // namespace megalith::cli
