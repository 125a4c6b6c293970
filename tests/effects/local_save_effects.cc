// Effects of the options of local checkpoints, by the files that ranks leave on their disks.
#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "megalith/run/pretrain.h"
#include "tests/effects/effect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using config::Dialect;
using config::TrainingArguments;

// Returns the parts of the state that four ranks leave on their disks.
std::string saves_locally(const TrainingArguments& args) {
  const TempFolder out, disks;
  TrainingArguments mine = args;
  mine.save.output_dir = out.path().string();
  if (mine.checkpoint.non_persistent_local_dir) mine.checkpoint.non_persistent_local_dir = disks.path().string();
  run_ranks(4, [&](const Rank& rank) {
    run::pretrain(*run::initialize_megatron(mine, {.allow_no_cuda = true, .world = &rank.world}));
  });
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(disks.path()))
    if (entry.path().extension() == ".safetensors") files.insert(fs::relative(entry.path(), disks.path()).string());
  return fmt::format("{}", fmt::join(files, " "));
}

}  // namespace

Effects local_save_effects() {
  const Words run{"--num_layers=1",
                  "--hidden_size=16",
                  "--num_attention_heads=2",
                  "--seq_length=256",
                  "--max_position_embeddings=256",
                  "--vocab_size=30",
                  "--tokenizer_type=NullTokenizer",
                  "--mock_data",
                  "--train_iters=2",
                  "--lr=1e-3",
                  "--lr_decay_style=constant",
                  "--micro_batch_size=1",
                  "--global_batch_size=4",
                  "--eval_iters=0",
                  "--use_cpu",
                  "--save=somewhere",
                  "--save_interval=2",
                  "--no_save_optim"};
  const Words local{"--non_persistent_ckpt_type=local", "--non_persistent_save_interval=1",
                    "--non_persistent_local_ckpt_dir=x"};
  const auto run_with = [&](std::initializer_list<Words> more) {
    Words all = run;
    for (const Words& words : more) all.insert(all.end(), words.begin(), words.end());
    return all;
  };
  const Words copies{"--replication", "--replication_jump=1"};
  const auto kPretrain = Dialect::kPretrain;
  return {
      {"non_persistent_local_ckpt_dir", run, {}, local, saves_locally, kPretrain},
      {"replication", run_with({local}), {}, copies, saves_locally, kPretrain},
      {"replication_jump",
       run_with({local, {"--replication"}}),
       {"--replication_jump=1"},
       {"--replication_jump=2"},
       saves_locally,
       kPretrain},
      {"replication_factor", run_with({local, copies}), {}, {"--replication_factor=4"}, saves_locally, kPretrain},
  };
}

}  // namespace megalith::testing
