// `megalith train`: fine-tuning and continued pre-training with the options of ROLL, Hugging Face and LLaMA-Factory.
#include "megalith/cli/command.h"
#include "megalith/run/run.h"
#include "megalith/run/run_words.h"

namespace megalith::cli {

int run_train(Words words) {
  if (words.empty()) return say_how_to_begin("train");
  run::RunWords given;
  if (!given.read(config::Dialect::kTrain, words, "megalith train")) return kDone;
  return run::launch_training(run::resolve(given.request()), given.launch());
}

}  // namespace megalith::cli
