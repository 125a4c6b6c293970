// Runs whose weights are kept and gathered in fp8. Products in fp8 round their weights in any case, so that the numbers
// of a run must not change by a bit: neither its losses nor its checkpoints.
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"
#include "megalith/model/pretrained.h"
#include "megalith/nn/parameter/fp8_value.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

// Switches on fp8, and the distributed optimizer, which fp8_param needs. Without `in_bf16`, parameters are fp32.
void use_fp8(TrainerCase& how, const std::string& recipe, bool in_bf16) {
  how.args.precision.bf16 = in_bf16;
  how.args.precision.fp8 = config::Fp8Format::kHybrid;
  how.args.precision.fp8_recipe = recipe;
  if (recipe == "delayed") {
    how.args.precision.fp8_amax_history_len = 3;
    how.args.precision.fp8_amax_compute_algo = "max";
    how.args.precision.fp8_margin = 1;
  }
  how.args.optimizer.use_distributed_optimizer = true;
}

TrainerCase fp8_layout(const std::string& name, const std::string& recipe, bool in_bf16) {
  TrainerCase how;
  how.name = name + " " + recipe + (in_bf16 ? " bf16" : " fp32");
  how.args.run.max_steps = 4;
  how.args.batch.micro_batch_size = 4;
  use_fp8(how, recipe, in_bf16);
  if (name == "dp2") how.dp = 2;
  if (name == "dp3") {
    how.dp = 3;
    how.args.fault.check_weight_hash_interval = 1;  // replicas have the same bytes
    how.args.logging.log_params_norm = true;
  }
  if (name == "tp2") how.tp = 2;
  if (name == "pp2") how.pp = 2;
  if (name == "cp2") how.cp = 2;
  if (name == "tp2 dp2") how.tp = how.dp = 2;
  if (name == "pp2 dp2 overlapped") {
    how.pp = how.dp = 2;
    how.args.ddp.overlap_grad_reduce = how.args.ddp.overlap_param_gather = true;
    how.args.ddp.bucket_size = 5000;
  }
  if (name == "tp2 dp2") how.args.parallel.sequence_parallel = true;
  if (name == "offloaded") {
    how.dp = 2;
    how.args.optimizer.cpu_offload = true;
    how.args.optimizer.offload_fraction = 0.5;
  }
  if (name == "fp16 main") {
    how.dp = 2;
    how.args.optimizer.use_precision_aware_optimizer = true;
    how.args.optimizer.main_params_dtype = "fp16";
  }
  return how;
}

struct Fp8ParamNumbers {
  std::vector<double> losses, norms, weight_norms;
  double evaluation = 0;
};

Fp8ParamNumbers numbers_of(TrainerCase how, bool fp8_param) {
  how.args.precision.fp8_param = fp8_param;
  const auto rows = random_sequences(24, 50, 1);
  const RunLog log = run_training(golden_folder("llama"), how, rows, rows);
  return {log.numbers("loss"), log.numbers("grad_norm"), log.numbers("params_norm"),
          log.evaluation.find("eval_loss").value_or(0)};
}

TEST(Fp8Param, ChangesNoNumber) {
  for (const char* recipe : {"tensorwise", "delayed"})
    for (const bool in_bf16 : {true, false})
      for (const char* layout :
           {"one rank", "dp2", "dp3", "tp2", "pp2", "cp2", "tp2 dp2", "pp2 dp2 overlapped", "offloaded", "fp16 main"}) {
        if (!in_bf16 && std::string(layout) == "fp16 main") continue;  // an fp32 model is its own main parameters
        const TrainerCase how = fp8_layout(layout, recipe, in_bf16);
        SCOPED_TRACE(how.name);
        const Fp8ParamNumbers kept = numbers_of(how, true), cast = numbers_of(how, false);
        ASSERT_EQ(kept.losses.size(), 4U);
        EXPECT_EQ(kept.losses, cast.losses);
        EXPECT_EQ(kept.norms, cast.norms);
        EXPECT_EQ(kept.weight_norms, cast.weight_norms);
        EXPECT_EQ(kept.evaluation, cast.evaluation);
      }
}

TEST(Fp8Param, TakesOneByteForEachWeightInFp8) {
  for (const bool fp8_param : {false, true}) {
    TrainerCase how = fp8_layout("dp2", "tensorwise", true);
    how.args.run.max_steps = 1;
    how.args.precision.fp8_param = fp8_param;
    const auto rows = random_sequences(8, 50, 1);
    run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
      train::Trainer trainer(r.models, r.settings(), r.setup(dataset_of(rows)));
      trainer.train();
      int64_t in_fp8 = 0;
      for (const nn::Parameter* p : r.models.parameters()) {
        const bool small = fp8_param && p->attached.in_fp8;
        EXPECT_EQ(p->value.element_size(), small ? 1 : 2) << p->spec.name;
        in_fp8 += small ? 1 : 0;
        if (!small) continue;
        EXPECT_FALSE(p->attached.bytes->loaded.defined()) << "the weight is still held in bf16";
        EXPECT_TRUE(p->grad.main_grad.scalar_type() == at::kFloat);
      }
      EXPECT_EQ(in_fp8, fp8_param ? 16 : 0);  // four in each of four layers
    });
  }
}

// A run and its continuation from the middle, in the same layout and in others, against the same without fp8_param.
TEST(Fp8Param, SavesAndContinuesAsWithoutIt) {
  for (const char* recipe : {"tensorwise", "delayed"})
    for (const bool in_bf16 : {true, false}) {
      SCOPED_TRACE(fmt::format("{} {}", recipe, in_bf16));
      const TempFolder folder;
      const auto run = [&](const std::string& name, bool fp8_param, int tp, int dp,
                           const std::optional<std::filesystem::path>& from) {
        TrainerCase how;
        how.name = name;
        how.args = resume_arguments(folder / name, 4, 2);
        how.args.batch.micro_batch_size = 4;
        how.args.batch.global_batch_size = 8;
        use_fp8(how, recipe, in_bf16);
        how.args.precision.fp8_param = fp8_param;
        how.args.checkpoint.async_save = dp == 2;
        how.tp = tp;
        how.dp = dp;
        run_resumable(how, {.checkpoint = from});
        return folder / name;
      };
      const auto kept = run("kept", true, 1, 2, {}), cast = run("cast", false, 1, 2, {});
      expect_same_tensors(kept / "checkpoint-2", cast / "checkpoint-2", /*with_rng=*/true);
      expect_same_tensors(kept / "checkpoint-4", cast / "checkpoint-4", /*with_rng=*/true);
      const auto again = run("again", true, 1, 2, kept / "checkpoint-2");
      expect_same_tensors(again / "checkpoint-4", kept / "checkpoint-4", /*with_rng=*/true);
      // Switched on or off in the middle, and in another layout.
      const auto off = run("off", false, 1, 2, kept / "checkpoint-2");
      expect_same_tensors(off / "checkpoint-4", kept / "checkpoint-4", /*with_rng=*/true);
      const auto split = run("split", true, 2, 1, kept / "checkpoint-2");
      const auto split_cast = run("split_cast", false, 2, 1, cast / "checkpoint-2");
      expect_same_tensors(split / "checkpoint-4", split_cast / "checkpoint-4", /*with_rng=*/true);
    }
}

// The best model is loaded into weights in fp8; the export at the end has all of its bits.
TEST(Fp8Param, LoadsTheBestModelAndExportsIt) {
  const TempFolder folder;
  const auto exported = [&](const std::string& name, bool fp8_param) {
    TrainerCase how;
    how.args = resume_arguments(folder / name, 4, 1);
    use_fp8(how, "tensorwise", true);
    how.args.precision.fp8_param = fp8_param;
    how.args.batch.micro_batch_size = 4;
    how.args.optimizer.learning_rate = 0.3;  // so high that the first steps are the best ones
    how.args.eval.strategy = config::Interval::kSteps;
    how.args.eval.steps = 1;
    how.args.eval.metric_for_best_model = "loss";
    how.args.eval.load_best_model_at_end = true;
    how.dp = 2;
    const train::TrainerState state =
        run_resumable(how, {.ended = [&](train::Trainer& trainer) { trainer.save_model(folder / (name + "_model")); }});
    EXPECT_NE(state.best_model_checkpoint, folder / name / "checkpoint-4");
    return io::read_text_file(folder / (name + "_model") / "model.safetensors", 1 << 30);
  };
  EXPECT_TRUE(exported("kept", true) == exported("cast", false));
}

// Without its optimizer a model has only what the bytes say: it can be saved, but not trained as if nothing were lost.
TEST(Fp8Param, IsRefusedForAModelWhoseOptimizerIsGone) {
  const TempFolder folder;
  TrainerCase how = fp8_layout("dp2", "tensorwise", true);
  how.args.precision.fp8_param = true;
  const auto rows = random_sequences(8, 50, 1);
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::Trainer(r.models, r.settings(), r.setup(dataset_of(rows))).train();
    model::save_pretrained(r.models, folder / "model", {});
    train::Trainer again(r.models, r.settings(), r.setup(dataset_of(rows)));
    expect_error<ConfigError>([&] { again.train(); }, {"is in fp8 since an earlier run"});
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "model" / "model.safetensors"));
}

}  // namespace
}  // namespace megalith::testing
