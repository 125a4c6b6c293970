// pretrain's forward step of language modeling costs what the objective of `train` costs.
#include "megalith/train/objectives/forward_step.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

thread_local int* product_count = nullptr;

std::unique_ptr<at::ObserverContext> note_product(const at::RecordFunction& call) {
  if (product_count != nullptr && std::string(call.name()).find("mm") != std::string::npos) ++*product_count;
  return nullptr;
}

struct Trained {
  int products = 0;  // matrix products of the run
  double loss = 0;
};

// Two steps with the projection inside the loss, which runs once if its gradient is known in advance and twice if not.
Trained train_counted(const std::function<std::unique_ptr<train::Objective>()>& objective) {
  TrainerCase how;
  how.args.fusion.cross_entropy_loss = true;
  how.args.run.max_steps = 2;
  Trained result;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(16, 512)));
    setup.objective = objective();
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(note_product));
    product_count = &result.products;
    result.loss = trainer.train().training_loss;
    product_count = nullptr;
    at::removeCallback(handle);
  });
  return result;
}

std::unique_ptr<train::Objective> forward_step(train::ForwardStep function) {
  return std::make_unique<train::ForwardStepObjective>(
      train::ForwardStepObjective::Settings{.forward_step = std::move(function), .per_token = true});
}

TEST(ForwardStep, OfLanguageModelingRunsTheHeadOnce) {
  const Trained plain = train_counted([] { return std::make_unique<train::Objective>(); });
  const Trained pretrained = train_counted([] { return forward_step(train::gpt_forward_step); });
  EXPECT_GT(plain.products, 0);
  EXPECT_EQ(pretrained.products, plain.products);
  EXPECT_EQ(pretrained.loss, plain.loss);
  // A function of one's own may do anything with the losses.
  const Trained own = train_counted(
      [] { return forward_step([](const train::ForwardStepInput& step) { return train::gpt_forward_step(step); }); });
  EXPECT_GT(own.products, plain.products);
  EXPECT_NEAR(own.loss, plain.loss, 1e-6);
}

TEST(ForwardStep, OfLanguageModelingAllowsGraphs) {
  const auto standard = forward_step(train::gpt_forward_step);
  const auto own = forward_step([](const train::ForwardStepInput& step) { return train::gpt_forward_step(step); });
  const model::ModelConfig config = model::read_model_config(golden_folder("llama"));
  const auto obstacle = [&](const train::Objective& objective) {
    return train::graph_obstacle({}, config, {.on_cuda = true, .recordable_loss = objective.recordable()});
  };
  EXPECT_EQ(obstacle(*standard), "");
  EXPECT_EQ(obstacle(*own), "the objective does not say that the device can compute it alone");
  const train::ForwardStepObjective stated(
      {.forward_step = [](const train::ForwardStepInput& step) { return train::gpt_forward_step(step); },
       .recordable = true});
  EXPECT_EQ(obstacle(stated), "");
}

}  // namespace
}  // namespace megalith::testing
