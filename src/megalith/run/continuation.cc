#include "megalith/run/continuation.h"

#include <fmt/format.h>

#include "megalith/base/text.h"
#include "megalith/run/resolve/output_folder.h"

namespace megalith::run {

std::string how_to_continue(const RunPlan& plan) {
  const OutputSettings& output = plan.settings.output;
  const std::string folder = output.folder.string();
  if (output.folder.empty()) return "not possible: without output_dir nothing is saved";
  if (!holds_checkpoints(output.folder))
    return fmt::format("not possible: the run writes no checkpoints (save_strategy, save_steps), only the model in {}",
                       folder);
  if (plan.options.dialect == config::Dialect::kPretrain)
    return plan.settings.pretrain.load.folder == output.folder
               ? "run the same command again"
               : fmt::format("run the same command with --load {}", folder);
  // `train` continues by itself what its output folder holds, unless it is told otherwise.
  if (output.overwrites) return "run the same command with --resume_from_checkpoint auto, without overwrite_output_dir";
  const std::string resume = to_lower(plan.settings.resume.value_or("auto"));
  if (resume != "auto" && resume != "latest") return "run the same command with --resume_from_checkpoint auto";
  return "run the same command again";
}

}  // namespace megalith::run
