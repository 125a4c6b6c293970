// The learning rate and the weight decay of every step.
#include <fmt/format.h>

#include "megalith/config/derive.h"
#include "megalith/run/resolve/schedule.h"
#include "tests/effects/effect.h"

namespace megalith::testing {
namespace {

using config::Dialect;
using config::TrainingArguments;

std::string rates(const TrainingArguments& args) {
  const TrainingArguments effective = config::derive(args).args;
  const layout::MicrobatchCalculator batches(config::batch_plan(effective, 1));
  const optim::RunSchedule run = run::make_schedule(effective, batches);
  std::string text = fmt::format("{} steps\n", run.train_iters);
  const int64_t unit = run.increment(batches.final_global_batch_size());
  for (int64_t step = 0; step <= run.train_iters; ++step) {
    const int64_t at = step * unit;
    text += fmt::format("{} {} {}\n", run.schedule.lr(at), run.schedule.weight_decay(at),
                        run.groups.size() > 1 ? run.schedule.lr(at, run.groups[1]) : -1);
  }
  return text;
}

const Words kTrain{"--max_steps=20", "--learning_rate=1e-3"};
const Words kPretrain{"--train_iters=20", "--lr=1e-3", "--micro_batch_size=1", "--global_batch_size=4"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

Effects schedule_effects() {
  const Words wsd{"--lr_decay_style=WSD"};
  return {
      {"learning_rate", {"--max_steps=20"}, {}, {"--learning_rate=1e-3"}, rates},
      {"weight_decay", kTrain, {}, {"--weight_decay=0.1"}, rates},
      {"weight_decay_incr_style",
       with(kPretrain, {"--start_weight_decay=0.1", "--end_weight_decay=0.3"}),
       {"--weight_decay_incr_style=linear"},
       {"--weight_decay_incr_style=cosine"},
       rates,
       Dialect::kPretrain},
      {"start_weight_decay",
       with(kPretrain, {"--weight_decay_incr_style=linear", "--end_weight_decay=0.3"}),
       {"--start_weight_decay=0.1"},
       {"--start_weight_decay=0.2"},
       rates,
       Dialect::kPretrain},
      {"end_weight_decay",
       with(kPretrain, {"--weight_decay_incr_style=linear", "--start_weight_decay=0.1"}),
       {"--end_weight_decay=0.3"},
       {"--end_weight_decay=0.2"},
       rates,
       Dialect::kPretrain},
      {"decoupled_lr", kPretrain, {}, {"--decoupled_lr=5e-4"}, rates, Dialect::kPretrain},
      {"decoupled_min_lr",
       with(kPretrain, {"--decoupled_lr=5e-4"}),
       {},
       {"--decoupled_min_lr=1e-4"},
       rates,
       Dialect::kPretrain},
      {"lr_scheduler_type", kTrain, {}, {"--lr_scheduler_type=cosine"}, rates},
      {"lr_scheduler_kwargs", kTrain, {}, {"--lr_scheduler_kwargs={\"min_lr\": 1e-4}"}, rates},
      {"warmup_steps", kTrain, {}, {"--warmup_steps=5"}, rates},
      {"warmup_ratio", kTrain, {}, {"--warmup_ratio=0.2"}, rates},
      {"lr_decay_style", kPretrain, {}, {"--lr_decay_style=cosine"}, rates, Dialect::kPretrain},
      {"min_lr", kPretrain, {}, {"--min_lr=1e-4"}, rates, Dialect::kPretrain},
      {"lr_decay_iters", kPretrain, {}, {"--lr_decay_iters=10"}, rates, Dialect::kPretrain},
      {"lr_decay_samples", kPretrain, {}, {"--lr_decay_samples=40"}, rates, Dialect::kPretrain},
      {"lr_warmup_fraction", kPretrain, {}, {"--lr_warmup_fraction=0.25"}, rates, Dialect::kPretrain},
      {"lr_warmup_iters", kPretrain, {}, {"--lr_warmup_iters=4"}, rates, Dialect::kPretrain},
      {"lr_warmup_samples", kPretrain, {}, {"--lr_warmup_samples=16"}, rates, Dialect::kPretrain},
      {"lr_warmup_init",
       with(kPretrain, {"--lr_warmup_iters=4"}),
       {},
       {"--lr_warmup_init=1e-4"},
       rates,
       Dialect::kPretrain},
      {"lr_wsd_decay_style",
       with(with(kPretrain, wsd), {"--lr_wsd_decay_iters=5"}),
       {},
       {"--lr_wsd_decay_style=linear"},
       rates,
       Dialect::kPretrain},
      {"lr_wsd_decay_iters",
       with(kPretrain, wsd),
       {"--lr_wsd_decay_iters=5"},
       {"--lr_wsd_decay_iters=10"},
       rates,
       Dialect::kPretrain},
      {"lr_wsd_decay_samples",
       with(kPretrain, wsd),
       {"--lr_wsd_decay_samples=20"},
       {"--lr_wsd_decay_samples=40"},
       rates,
       Dialect::kPretrain},
      {"train_samples",
       {"--lr=1e-3", "--micro_batch_size=1", "--global_batch_size=4"},
       {"--train_samples=40"},
       {"--train_samples=80"},
       rates,
       Dialect::kPretrain},
  };
}

}  // namespace megalith::testing
