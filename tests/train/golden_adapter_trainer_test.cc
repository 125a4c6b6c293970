// Steps of AdamW on the golden adapters through the trainer: losses and gradient norms of Hugging Face's libraries.
#include <gtest/gtest.h>

#include "megalith/model/families/family.h"
#include "tests/support/golden_adapter.h"
#include "tests/train/golden_steps.h"

namespace megalith::testing {
namespace {

class GoldenHfLoraTrainer : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = read_golden_adapter(GetParam());
    if (!model_type_supported(golden_model_type(golden_.base)))
      GTEST_SKIP() << GetParam() << ": " << golden_model_type(golden_.base) << " is not supported";
    if (!golden_.shared_a().empty())
      GTEST_SKIP() << GetParam() << ": one A is trained for several modules there, and one for each here";
  }
  void expect_steps(TrainerCase how) const {
    const auto base = golden_folder(golden_.base);
    if (how.tp > 1 && !splits_over_two(base)) return leave_out(how.name, "its sizes are odd");
    if (golden_.input_ids.size(0) % how.dp != 0) return leave_out(how.name, "its rows are odd");
    if (how.pp > model::read_model_config(base).num_layers) return leave_out(how.name, "it has one layer");
    how.args.run.finetuning_type = config::FinetuningType::kLora;
    how.args.lora.adapter_name_or_path = {golden_.folder.string()};
    expect_golden_steps(base, golden_.input_ids, golden_.labels, golden_.json.at("train"), how);
  }
  GoldenAdapter golden_;
};

TEST_P(GoldenHfLoraTrainer, losses_and_norms) {
  golden_member(golden_.json, "train");
  const bool experts = model::read_model_config(golden_folder(golden_.base)).moe.has_value();
  const auto rows = static_cast<int>(golden_.input_ids.size(0));
  for (const int tp : {1, 2})
    for (const int pp : {1, 2}) {
      TrainerCase how{.name = fmt::format("tp {} pp {}", tp, pp), .tp = tp, .pp = pp};
      how.args.parallel.sequence_parallel = tp > 1 && (experts || pp == 2);
      how.args.batch.gradient_accumulation_steps = pp > 1 ? rows : 1;
      expect_steps(how);
    }
  TrainerCase sharded{.name = "dp 2, distributed optimizer", .tp = 2, .dp = 2};
  sharded.args.parallel.sequence_parallel = true;
  sharded.args.optimizer.use_distributed_optimizer = true;
  sharded.args.ddp.overlap_grad_reduce = sharded.args.ddp.overlap_param_gather = true;
  sharded.args.ddp.bucket_size = 1000;
  if (experts) sharded.args.parallel.ep = 2;
  expect_steps(sharded);
  TrainerCase context{.name = "cp 2, recompute", .cp = 2};
  context.args.recompute.gradient_checkpointing = true;
  expect_steps(context);
}

INSTANTIATE_TEST_SUITE_P(, GoldenHfLoraTrainer, ::testing::ValuesIn(golden_or_none(golden_adapter_names())),
                         [](const auto& test) { return golden_test_name(test); });

}  // namespace
}  // namespace megalith::testing
