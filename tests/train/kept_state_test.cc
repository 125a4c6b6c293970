// Training that another rank's failure interrupts continues with the state in memory, on ranks that are threads.
#include "megalith/train/kept_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "tests/support/golden.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

constexpr int64_t kInterrupted = 3, kSteps = 6;

// Interrupts training in the step after `step`, as the failure of another rank does.
class Interruption : public train::TrainerCallback {
 public:
  Interruption(int64_t step, bool in_update) : step_(step), in_update_(in_update) {}
  void on_step_begin(train::TrainerEvent& event) override { interrupt(event, !in_update_); }
  void on_optimizer_step(train::TrainerEvent& event) override { interrupt(event, in_update_); }

 private:
  void interrupt(const train::TrainerEvent& event, bool here) const {
    if (here && event.state.global_step == step_) throw comm::PeerFailure("another rank failed");
  }
  const int64_t step_;
  const bool in_update_;
};

using Memory = std::vector<train::KeptState>;

// A run of kSteps steps, or up to an interruption.
struct MemoryRun {
  TrainerCase how;
  std::vector<std::vector<at::Tensor>> weights{};  // by rank, at the end
  int64_t start_step = -1;

  explicit MemoryRun(TrainerCase given) : how(std::move(given)) {
    how.args.run.max_steps = kSteps;
    how.args.save.output_dir.reset();
  }

  Memory interrupted_after(int64_t step, bool in_update = false) const {
    Memory memory(static_cast<size_t>(how.ranks()));
    run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
      train::TrainerSetup setup = r.setup(dataset_of(random_sequences(64, 50, 1)));
      setup.kept = &memory[static_cast<size_t>(r.rank.rank)];
      setup.callbacks.push_back(std::make_unique<Interruption>(step, in_update));
      train::Trainer trainer(r.models, r.settings(), std::move(setup));
      EXPECT_THROW(trainer.train(), comm::PeerFailure);
    });
    return memory;
  }

  void run(Memory* memory) {
    weights.resize(static_cast<size_t>(how.ranks()));
    run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
      const auto rank = static_cast<size_t>(r.rank.rank);
      train::TrainerSetup setup = r.setup(dataset_of(random_sequences(64, 50, 1)));
      if (memory != nullptr) setup.kept = &(*memory)[rank];
      train::Trainer trainer(r.models, r.settings(), std::move(setup));
      const train::TrainOutput output = trainer.train();
      EXPECT_EQ(output.global_step, kSteps);
      if (rank == 0) start_step = output.start_step;
      for (const auto& part : r.models.sharded()) weights[rank].push_back(part.local.detach().clone());
    });
  }
};

TrainerCase layout(int tp, int pp, int dp, int cp = 1) {
  TrainerCase how{.tp = tp, .pp = pp, .dp = dp, .cp = cp};
  how.args.batch.micro_batch_size = 2;
  return how;
}

// Returns the step at which the rest of an interrupted run starts; it must end like the run that was not interrupted.
int64_t continued_step(const TrainerCase& how, const std::vector<size_t>& lost) {
  MemoryRun whole(how), rest(how);
  whole.run(nullptr);
  Memory memory = whole.interrupted_after(kInterrupted);
  for (const size_t rank : lost) memory[rank] = {};
  rest.run(&memory);
  EXPECT_EQ(whole.weights.size(), rest.weights.size());
  for (size_t rank = 0; rank < whole.weights.size(); ++rank)
    for (size_t i = 0; i < whole.weights[rank].size(); ++i)
      EXPECT_TRUE(at::equal(whole.weights[rank][i], rest.weights[rank].at(i))) << "rank " << rank << " tensor " << i;
  return rest.start_step;
}

TEST(KeptState, GivesALostRankTheStateOfAReplica) {
  EXPECT_EQ(continued_step(layout(1, 1, 2), {1}), kInterrupted);
  EXPECT_EQ(continued_step(layout(1, 1, 2), {0}), kInterrupted);
  EXPECT_EQ(continued_step(layout(2, 1, 2), {0, 3}), kInterrupted);
  EXPECT_EQ(continued_step(layout(1, 2, 2), {2}), kInterrupted);
  EXPECT_EQ(continued_step(layout(1, 1, 1, 2), {1}), kInterrupted);  // context-parallel ranks are replicas, too
}

TEST(KeptState, KeepsMainParametersAndAdapters) {
  TrainerCase half = layout(2, 1, 2);
  half.args.precision.bf16 = true;
  EXPECT_EQ(continued_step(half, {1}), kInterrupted);
  TrainerCase adapter = layout(1, 1, 2);
  adapter.args.run.finetuning_type = config::FinetuningType::kLora;
  EXPECT_EQ(continued_step(adapter, {1}), kInterrupted);
  adapter.args.lora.quantization_bit = 4;  // the base is read from its folder again
  EXPECT_EQ(continued_step(adapter, {1}), kInterrupted);
}

TEST(KeptState, NeedsNobodyElseIfAllRanksSurvive) { EXPECT_EQ(continued_step(layout(2, 1, 1), {}), kInterrupted); }

TEST(KeptState, IsNotUsedWithoutAReplica) {
  EXPECT_EQ(continued_step(layout(2, 1, 2), {1, 3}), 0);
  EXPECT_EQ(continued_step(layout(2, 1, 1), {1}), 0);
  EXPECT_EQ(continued_step(layout(1, 1, 2), {0, 1}), 0);
}

TEST(KeptState, IsNotUsedWhereReplicasDiffer) {
  TrainerCase random = layout(1, 1, 2);
  random.args.layer.hidden_dropout = 0.1;
  EXPECT_EQ(continued_step(random, {1}), 0);
  TrainerCase sharded = layout(1, 1, 2);
  sharded.args.optimizer.use_distributed_optimizer = true;
  EXPECT_EQ(continued_step(sharded, {1}), 0);
}

TEST(KeptState, IsNotUsedAfterHalfAnUpdateOrDifferentSteps) {
  MemoryRun run(layout(1, 1, 2));
  Memory torn = run.interrupted_after(kInterrupted, /*in_update=*/true);
  run.run(&torn);
  EXPECT_EQ(run.start_step, 0);
  Memory mixed = run.interrupted_after(kInterrupted);
  mixed[1] = run.interrupted_after(kInterrupted - 1)[1];
  run.run(&mixed);
  EXPECT_EQ(run.start_step, 0);
}

}  // namespace
}  // namespace megalith::testing
