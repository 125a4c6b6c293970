// Finds the checkpoint that a run continues. `train` resumes by resume_from_checkpoint, with the choice made together
// by all ranks; `pretrain` loads by Megatron's options, found once before ranks exist. A checkpoint counts only with
// its manifest, which is written last.
#include "megalith/run/resolve/load.h"

#include <fmt/ranges.h>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/config/saved_model.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/train/run_checkpoint.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;

// Returns the folder of the run in the form that checkpoint:: expects: never empty.
fs::path checkpoints_of(const fs::path& run_folder) { return run_folder.empty() ? fs::path(".") : run_folder; }

// Compares sizes with the manifest and no contents, so it takes milliseconds even for terabytes.
void check_complete(const fs::path& checkpoint) {
  const auto problems = checkpoint::problems_of_sizes(checkpoint, checkpoint::read_manifest(checkpoint));
  check<DataError>(problems.empty(), "{} is broken: {}", checkpoint.string(), list_in_words(problems, 8));
}

// Returns a checkpoint's own folder, or the newest in the folder of a run. If no checkpoint there has a manifest,
// returns the newest anyway, so that reading it names the problem.
std::optional<fs::path> checkpoint_in(const fs::path& folder) {
  if (checkpoint::has_manifest(folder)) return folder;
  if (const auto newest = checkpoint::latest_checkpoint(folder)) return newest;
  const auto all = checkpoint::list_checkpoints(folder);
  return all.empty() ? std::nullopt : std::optional(all.back().folder);
}

int64_t step_of(const fs::path& checkpoint) { return checkpoint::read_manifest(checkpoint).step; }

// Non-persistent checkpoints win ties, as in Megatron. A damaged one is passed over: it was never meant to last.
void take_rolling(const fs::path& folder, LoadRequest& request, bool logs) {
  const auto all = checkpoint::list_checkpoints(folder);
  for (auto rolling = all.rbegin(); rolling != all.rend(); ++rolling) {
    std::string problem;
    try {
      check_complete(rolling->folder);
      const bool older =
          request.folder && checkpoint::has_manifest(*request.folder) && rolling->step < step_of(*request.folder);
      if (older) problem = fmt::format("{} is older than {}", rolling->folder.string(), request.folder->string());
    } catch (const DataError& error) {
      problem = error.what();
    }
    if (problem.empty()) {
      request.fallback = std::exchange(request.folder, rolling->folder);
      return;
    }
    if (logs) log_warning("{}; this non-persistent checkpoint is not used", problem);
  }
}

}  // namespace

std::optional<fs::path> check_resume(const std::optional<std::string>& wanted, const fs::path& run_folder) {
  if (!wanted) return std::nullopt;
  auto folder = checkpoint::find_checkpoint(*wanted, checkpoints_of(run_folder));
  if (folder && to_lower(*wanted) != "auto") check_complete(*folder);
  return folder;
}

std::optional<fs::path> find_resume(const std::optional<std::string>& wanted, const fs::path& run_folder,
                                    const parallel::ParallelContext& context) {
  if (!wanted) return std::nullopt;
  // Ranks agree on one folder: a network file system may show a new checkpoint to some of them first.
  const checkpoint::ResumeChoice choice = checkpoint::choose_checkpoint(*wanted, checkpoints_of(run_folder), context);
  if (context.rank() == 0) {
    for (const std::string& skipped : choice.skipped) log_warning("{}", skipped);
    if (!choice.folder) log_info("there is no checkpoint to continue: the run starts from the beginning");
  }
  return choice.folder;
}

LoadRequest find_load(const LoadSettings& settings, bool logs) {
  check<ConfigError>(!settings.counts_from || !settings.weights_only,
                     "override_ckpt_iteration and finetune, which begins at iteration 0, exclude each other");
  LoadRequest request{.folder = {}, .weights_only = settings.weights_only};
  if (settings.folder) {
    const fs::path& folder = *settings.folder;
    request.folder = settings.step ? folder / checkpoint::folder_name(*settings.step) : checkpoint_in(folder);
  }
  // A step that is asked for by name is not replaced by another one.
  if (settings.rolling && !settings.step) take_rolling(*settings.rolling, request, logs);
  if (settings.folder) {
    check<ConfigError>(request.folder || !settings.must_exist,
                       "load {} holds no checkpoint, and exit_on_missing_checkpoint is given",
                       settings.folder->string());
  }
  // The fallback brings weights only: it belongs to another run, whose steps do not count here.
  if (!request.folder && settings.pretrained) {
    request = {checkpoint_in(*settings.pretrained), true};
    check<ConfigError>(request.folder.has_value(), "pretrained_checkpoint {} holds no checkpoint",
                       settings.pretrained->string());
  }
  if (request.folder) check_complete(*request.folder);
  return request;
}

void take_checkpoint_arguments(config::ParseResult& parsed) {
  config::TrainingArguments& args = parsed.args;
  if (!args.checkpoint.use_checkpoint_args || !(args.save.load || args.checkpoint.pretrained_checkpoint)) return;
  const auto folder = find_load(load_settings(args)).folder;
  check<ConfigError>(folder.has_value(),
                     "use_checkpoint_args: load {} holds no checkpoint whose model could be taken; give a folder with"
                     " one, or describe the model (num_layers, hidden_size, …)",
                     args.save.load.value_or(""));
  const fs::path file = *folder / train::kArgumentsFile;
  check<DataError>(fs::is_regular_file(file), "use_checkpoint_args: there is no file {}", file.string());
  // A saved args.yaml is read like the command line of that run, so its defaults and checks apply.
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
