#include "tests/train/reshard_case.h"

#include <gtest/gtest.h>

#include <array>

#include "megalith/checkpoint/verify.h"
#include "megalith/data/random.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {

namespace fs = std::filesystem;

namespace {

struct RandomLayout {
  TrainerCase how;
  std::string text;
};

// 8 samples a step in any.
RandomLayout random_layout(data::RandomStream& random, const fs::path& out, bool bf16) {
  TrainerCase how;
  do {
    how.tp = 1 << random.below(2);
    how.pp = 1 << random.below(2);
    how.dp = 1 << random.below(3);
  } while (how.ranks() > 8);
  if (how.pp > 1 && random.below(2) == 0) how.vpp = 2;
  how.args = resume_arguments(out, 3, 2);
  const int microbatches = how.pp > 1 ? 2 : 1 << random.below(2);
  how.args.batch.gradient_accumulation_steps = microbatches;
  how.args.batch.micro_batch_size = 8 / how.dp / microbatches;
  how.args.optimizer.use_distributed_optimizer = random.below(2) == 0;
  how.args.ddp.overlap_grad_reduce = random.below(2) == 0;
  how.args.ddp.overlap_param_gather = how.args.optimizer.use_distributed_optimizer && how.args.ddp.overlap_grad_reduce;
  how.args.ddp.bucket_size = 2000 + static_cast<int64_t>(random.below(20000));
  how.args.parallel.sequence_parallel = how.tp > 1 && random.below(2) == 0;
  how.args.shape.make_vocab_size_divisible_by = 1 + static_cast<int>(random.below(200));
  how.args.precision.bf16 = bf16;
  const std::string text =
      fmt::format("tp {} pp {} dp {} vpp {} micro-batches {} distributed {} vocabulary by {}", how.tp, how.pp, how.dp,
                  how.vpp.value_or(1), microbatches, how.args.optimizer.use_distributed_optimizer,
                  how.args.shape.make_vocab_size_divisible_by);
  how.name = text;
  return {std::move(how), text};
}

// Saves what a run has before its first step.
void save_again(train::Trainer& trainer, const fs::path& folder) {
  checkpoint::Saver saver(trainer.models().context());
  saver.save(train::save_request(
      *trainer.optimized_model(),
      {.folder = folder, .args = trainer.args(), .state = trainer.state(), .progress = {}, .assets = {}}));
}

double loss_at(const train::TrainerState& state, double step) {
  for (const train::MetricList& line : state.log_history)
    if (line.find("step") == step && line.find("loss")) return *line.find("loss");
  ADD_FAILURE() << "no loss of step " << step;
  return 0;
}

}  // namespace

void try_pair_of_layouts(uint64_t seed) {
  data::RandomStream random(seed);
  const char* const model = std::array{"llama", "qwen2", "gpt2", "qwen3"}[random.below(4)];
  const bool bf16 = random.below(3) == 0;
  const TempFolder first, second;
  const RandomLayout a = random_layout(random, first.path(), bf16), b = random_layout(random, second.path(), bf16);
  SCOPED_TRACE(
      fmt::format("pair {}: {} {}\n  from {}\n  to   {}", seed, model, bf16 ? "bf16" : "fp32", a.text, b.text));
  const train::TrainerState expected = run_resumable(a.how, {.model = model});
  const train::TrainerState actual = run_resumable(
      b.how, {.model = model, .checkpoint = first / "checkpoint-2", .begun = [&](train::Trainer& trainer) {
                save_again(trainer, second / "again" / "checkpoint-2");
              }});
  expect_same_tensors(second.path() / "again" / "checkpoint-2", first / "checkpoint-2", /*with_rng=*/false);
  const fs::path again = second.path() / "again" / "checkpoint-2";
  EXPECT_TRUE(checkpoint::problems_of_content(again, checkpoint::read_manifest(again)).empty());
  expect_close(loss_at(actual, 3), loss_at(expected, 3), "loss of the next step", bf16 ? 2e-2 : kClose);
}

}  // namespace megalith::testing
