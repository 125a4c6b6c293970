// Options of fp8 products and of the residual stream's precision, by what they do to the numbers of a tiny run, or to
// its weights.
#include <fmt/format.h>

#include "megalith/config/derive.h"
#include "megalith/run/resolve/schedule.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/step/optimized_model.h"
#include "tests/effects/effect.h"
#include "tests/support/run_ranks.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

// Losses and gradient norms of a few steps with the precision and the fused operations of the arguments; nothing else
// of them is used.
std::string numbers_in_precision(const config::TrainingArguments& args) {
  TrainerCase how;
  how.args.precision = config::derive(args).args.precision;
  how.args.fusion = args.fusion;
  how.args.batch.micro_batch_size = 3;
  const auto rows = random_sequences(12, 50, 1);
  const RunLog log = run_training(golden_folder("llama"), how, rows, rows);
  return fmt::format("losses {} norms {}", fmt::join(log.numbers("loss"), " "),
                     fmt::join(log.numbers("grad_norm"), " "));
}

// Bytes of the weights of a model that is ready to train.
std::string bytes_of_weights(const config::TrainingArguments& given) {
  TrainerCase how;
  how.args.precision = given.precision;
  how.args.optimizer.use_distributed_optimizer = given.optimizer.use_distributed_optimizer;
  int64_t bytes = 0;
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    const layout::MicrobatchCalculator batches(config::batch_plan(r.args, 1));
    const train::OptimizedModel trained(r.models, run::update_settings(r.args), run::make_schedule(r.args, batches, 1),
                                        r.models.context());
    for (const nn::Parameter* p : r.models.parameters()) bytes += static_cast<int64_t>(p->value.nbytes());
  });
  return fmt::format("{} bytes", bytes);
}

}  // namespace

Effects fp8_effects() {
  const auto kPretrain = config::Dialect::kPretrain;
  const Words delayed{"--bf16", "--fp8=hybrid", "--fp8_recipe=delayed"};
  const auto and_also = [&](const char* word) {
    Words words = delayed;
    words.emplace_back(word);
    return words;
  };
  const Observe observe = numbers_in_precision;
  return {
      {"fp8", {"--bf16"}, {}, {"--fp8=hybrid"}, observe},
      {"fp8_recipe", {"--bf16", "--fp8=e4m3"}, {"--fp8_recipe=tensorwise"}, {"--fp8_recipe=delayed"}, observe},
      {"fp8_param", {"--bf16", "--fp8=hybrid", "--use_distributed_optimizer"}, {}, {"--fp8_param"}, bytes_of_weights},
      {"fp8_head", {"--bf16", "--fp8=hybrid", "--cross_entropy_loss_fusion"}, {}, {"--fp8_head"}, observe},
      {"fp32_residual_connection", {"--bf16"}, {}, {"--fp32_residual_connection"}, observe},
      {"fp8_wgrad", {"--bf16", "--fp8=hybrid"}, {}, {"--no-fp8-wgrad"}, observe, kPretrain},
      {"fp8_amax_history_len",
       and_also("--fp8_amax_compute_algo=max"),
       {},
       {"--fp8_amax_history_len=16"},
       observe,
       kPretrain},
      {"fp8_amax_compute_algo",
       and_also("--fp8_amax_history_len=16"),
       {},
       {"--fp8_amax_compute_algo=max"},
       observe,
       kPretrain},
      {"fp8_margin", delayed, {}, {"--fp8_margin=1"}, observe, kPretrain},
      {"first_last_layers_bf16", delayed, {}, {"--first_last_layers_bf16"}, observe, kPretrain},
  };
}

}  // namespace megalith::testing
