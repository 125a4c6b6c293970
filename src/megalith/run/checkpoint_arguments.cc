#include "megalith/run/checkpoint_arguments.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "megalith/base/error.h"
#include "megalith/config/saved_model.h"
#include "megalith/run/pretrain.h"
#include "megalith/train/run_checkpoint.h"

namespace megalith::run {

void take_checkpoint_arguments(config::ParseResult& parsed) {
  config::TrainingArguments& args = parsed.args;
  if (!args.checkpoint.use_checkpoint_args || !(args.save.load || args.checkpoint.pretrained_checkpoint)) return;
  const auto folder = find_load(args).folder;
  check<ConfigError>(folder.has_value(),
                     "use_checkpoint_args: load {} holds no checkpoint whose model could be taken; give a folder with"
                     " one, or describe the model (num_layers, hidden_size, …)",
                     args.save.load.value_or(""));
  const std::filesystem::path file = *folder / train::kArgumentsFile;
  check<DataError>(std::filesystem::is_regular_file(file), "use_checkpoint_args: {} is no file", file.string());
  const std::string words[]{file.string()};
  const config::TrainingArguments saved = config::parse_arguments(config::Dialect::kPretrain, words).args;
  check<ConfigError>(saved.shape.num_layers.has_value(),
                     "use_checkpoint_args: the run of {} took its model from a folder, not from options; describe the"
                     " model (num_layers, hidden_size, …), or continue with `megalith train`",
                     folder->string());
  const auto taken = config::take_model_of(saved, parsed.report, args);
  parsed.notes.push_back(
      fmt::format("use_checkpoint_args: of {}: {}", folder->string(),
                  taken.empty() ? "all options are given already" : fmt::format("{}", fmt::join(taken, ", "))));
}

}  // namespace megalith::run
