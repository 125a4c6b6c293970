#include "tests/train/reshard_case.h"

#include <gtest/gtest.h>

#include <array>

#include "megalith/checkpoint/copy.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/data/random.h"
#include "tests/support/close.h"
#include "tests/support/temp_folder.h"
#include "tests/train/resume_case.h"

namespace megalith::testing {

namespace fs = std::filesystem;

namespace {

struct RandomModel {
  std::string name;
  bool experts = false;
  bool bf16 = false;
};

RandomModel random_model(data::RandomStream& random) {
  const std::array<const char*, 4> dense{"llama", "qwen2", "gpt2", "qwen3"};
  const std::array<const char*, 3> with_experts{"mixtral", "qwen3_moe", "deepseek_v3"};
  const size_t number = random.below(dense.size() + with_experts.size());
  const bool experts = number >= dense.size();
  return {.name = experts ? with_experts[number - dense.size()] : dense[number],
          .experts = experts,
          .bf16 = random.below(3) == 0};
}

// 8 samples per step in any. Its name says what it is.
TrainerCase random_layout(data::RandomStream& random, const fs::path& out, const RandomModel& model) {
  TrainerCase how;
  int ep = 1, etp = 1;
  do {
    how.tp = 1 << random.below(2);
    how.pp = 1 << random.below(2);
    how.cp = 1 << random.below(2);
    how.dp = 1 << random.below(3);
    if (model.experts) ep = 1 << random.below(3), etp = 1 << random.below(2);
  } while (how.ranks() > 8 || how.tp * how.cp * how.dp % (ep * etp) != 0);
  if (how.pp > 1 && random.below(2) == 0) how.vpp = 2;
  how.args = resume_arguments(out, 3, 2);
  const int microbatches = how.pp > 1 ? 2 : 1 << random.below(2);
  how.args.batch.gradient_accumulation_steps = microbatches;
  how.args.batch.micro_batch_size = 8 / how.dp / microbatches;
  how.args.optimizer.use_distributed_optimizer = random.below(2) == 0;
  how.args.ddp.overlap_grad_reduce = random.below(2) == 0;
  how.args.ddp.overlap_param_gather = how.args.optimizer.use_distributed_optimizer && how.args.ddp.overlap_grad_reduce;
  how.args.ddp.bucket_size = 2000 + static_cast<int64_t>(random.below(20000));
  how.args.parallel.sequence_parallel = how.tp > 1 && (model.experts || random.below(2) == 0);
  how.args.parallel.ep = ep;
  if (model.experts) how.args.parallel.etp = etp;
  how.args.shape.make_vocab_size_divisible_by = 1 + static_cast<int>(random.below(200));
  how.args.precision.bf16 = model.bf16;
  how.name = fmt::format("tp {} pp {} vpp {} cp {} ep {} etp {} dp {} micro-batches {} distributed {} vocabulary by {}",
                         how.tp, how.pp, how.vpp.value_or(1), how.cp, ep, etp, how.dp, microbatches,
                         how.args.optimizer.use_distributed_optimizer, how.args.shape.make_vocab_size_divisible_by);
  return how;
}

// Saves what a run has before its first step.
void save_again(train::Trainer& trainer, const fs::path& folder) {
  checkpoint::Saver saver(trainer.models().context());
  saver.save(train::save_request(
      *trainer.optimized_model(),
      {.folder = folder, .settings = trainer.settings().save, .state = trainer.state(), .progress = {}, .assets = {}}));
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
  const RandomModel model = random_model(random);
  const TempFolder first, second;
  TrainerCase a = random_layout(random, first.path(), model);
  TrainerCase b = random_layout(random, second.path(), model);
  const bool muon = seed % 3 == 2;
  for (TrainerCase* how : {&a, &b}) {
    if (muon) how->args.optimizer.optimizer = config::OptimizerKind::kMuon;
    how->args.muon.tp_mode = config::MuonTpMode::kDuplicated;
  }
  const bool in_pieces = seed % 2 == 1;
  if (in_pieces) a.args.checkpoint.files = "per_writer";
  SCOPED_TRACE(fmt::format("pair {}: {} {}{}\n  from {}\n  to   {}", seed, model.name, model.bf16 ? "bf16" : "fp32",
                           muon ? " muon" : "", a.name, b.name));
  const train::TrainerState expected = run_resumable(a, {.model = model.name});
  const train::TrainerState actual = run_resumable(
      b, {.model = model.name, .checkpoint = first / "checkpoint-2", .begun = [&](train::Trainer& trainer) {
            save_again(trainer, second / "again" / "checkpoint-2");
          }});
  if (in_pieces) checkpoint::copy_checkpoint(first / "checkpoint-2", first / "joined", {});
  expect_same_tensors(second.path() / "again" / "checkpoint-2", first / (in_pieces ? "joined" : "checkpoint-2"),
                      /*with_rng=*/false);
  const fs::path again = second.path() / "again" / "checkpoint-2";
  EXPECT_TRUE(checkpoint::problems_of_content(again, checkpoint::read_manifest(again)).empty());
  expect_close(loss_at(actual, 3), loss_at(expected, 3), "loss of the next step", model.bf16 ? 2e-2 : kClose);
}

}  // namespace megalith::testing
