// `megalith pretrain`: the options of pretrain_gpt.py, and its model and data (run/pretrain.h).
#include "megalith/cli/command.h"
#include "megalith/run/run.h"
#include "megalith/run/run_words.h"

namespace megalith::cli {

int run_pretrain(Words words) {
  if (words.empty()) return say_how_to_begin("pretrain");
  run::RunWords given;
  if (!given.read(config::Dialect::kPretrain, words, "megalith pretrain")) return kDone;
  return run::launch_pretraining(run::resolve(given.request()), given.launch());
}

}  // namespace megalith::cli
