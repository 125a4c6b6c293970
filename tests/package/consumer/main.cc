// A program that uses the installed package: it joins a run, pre-trains a model for a step, and trains it on
// with a Trainer of its own.
#include <cmath>
#include <iostream>

#include "megalith/run/pretrain.h"

namespace {

using namespace megalith;

const std::vector<std::string> kWords{"--num-layers=2",
                                      "--hidden-size=32",
                                      "--num-attention-heads=4",
                                      "--seq-length=16",
                                      "--vocab-size=63",
                                      "--max-position-embeddings=16",
                                      "--tokenizer-type=NullTokenizer",
                                      "--mock-data",
                                      "--lr=0.01",
                                      "--micro-batch-size=1",
                                      "--train-iters=1",
                                      "--eval-iters=0",
                                      "--use-cpu"};

double train_on(run::RunContext& run) {
  model::VirtualModels models = run::make_models(run, run::gpt_model_provider(run));
  const run::ProvidedDatasets data = run::gpt_datasets(run, {4, 0, 0});
  const int64_t size = data.train->size();
  train::TrainerSetup setup;
  setup.train_data =
      train::numbered_data(data.train, {.size = size, .shuffle = false}, data::Collator(run.settings().pretrain.rows));
  train::Trainer trainer(models, run.settings().trainer, std::move(setup));
  return trainer.train().training_loss;
}

}  // namespace

int main() {
  const auto run = run::initialize_megatron(kWords);
  const double pretrained = run::pretrain(*run).training.training_loss;
  const double trained = train_on(*run);
  run::shutdown_megatron();
  const bool sound = std::isfinite(pretrained) && std::isfinite(trained);
  std::cout << (sound ? "trained a step twice" : "a loss is not a number") << "\n";
}
