// `megalith distill`: writes the likeliest tokens of a teacher for the data of a training run.
#include <fmt/format.h>

#include <filesystem>

#include "megalith/base/error.h"
#include "megalith/cli/command.h"
#include "megalith/config/parser.h"
#include "megalith/run/resolve/resolve.h"
#include "megalith/run/teacher_logits.h"

namespace megalith::cli {

namespace {

namespace fs = std::filesystem;

// The text of --help.
constexpr const char* kDistillUsage =
    R"(megalith distill [run.yaml] --teacher_model_name_or_path TEACHER --teacher_logits_path FOLDER [options]

Runs a teacher over the data of a training run and writes, for every labelled token, the ids and log-probabilities of
the tokens that it finds likeliest. `megalith train` with the same options and teacher_logits_path, but without the
teacher, then trains towards them: the teacher runs once, on other machines and in any layout, and takes no memory
beside the model. Options are those of `megalith train`:

  --teacher_model_name_or_path TEACHER   folder, or a hub name that has been downloaded
  --teacher_logits_path FOLDER           is made, and appears once it is complete
  --model_name_or_path MODEL             the model that will be trained, for its tokenizer (default: the teacher)
  --dataset NAMES        names in dataset_dir/dataset_info.json, or files; several with commas
  --template NAME, --cutoff_len N, …     how records become samples: as in the training run
  --kd_top_k K           tokens to keep (default 64)
  --kd_temperature T     also keep what training at this temperature needs (default 1)
  --dtype fp32|bf16|fp16 of the log-probabilities (default fp32)
  --per_device_eval_batch_size N         samples per forward pass
  --nproc N --tp N --pp N    ranks on this machine and the sizes that share the teacher; the rest is data parallel
  --bf16 | --fp16        number format of the teacher (default fp32)
)";

hf::Dtype dtype_of(const std::string& name) {
  if (name == "fp32") return hf::Dtype::kF32;
  if (name == "bf16") return hf::Dtype::kBF16;
  if (name == "fp16") return hf::Dtype::kF16;
  throw ConfigError(fmt::format("dtype is \"{}\"; it must be fp32, bf16 or fp16", name));
}

// The folder is looked at before ranks start: the teacher may run for days.
fs::path folder_in(const config::TrainingArguments& args) {
  const auto& name = args.distillation.files;
  check<ConfigError>(name.has_value(), "teacher_logits_path is missing: the folder to write");
  const fs::path folder = *name;
  check<ConfigError>(!fs::exists(folder) || (fs::is_directory(folder) && fs::is_empty(folder)),
                     "teacher_logits_path {} exists already; remove it, or give another folder", folder.string());
  return folder;
}

}  // namespace

int run_distill(Words words) {
  run::LaunchFlags launch;
  bool help = false;
  std::optional<std::string> dtype;
  auto own = launch.options();
  own.push_back({"dtype", "of the log-probabilities: fp32 (default), bf16 or fp16", &dtype});
  own.push_back({"help", "print the usage", &help});
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words, own);
  if (help) {
    fmt::print("{}", kDistillUsage);
    return kDone;
  }
  launch.check(parsed.args.comm);
  const run::RunRequest request{
      .work = run::Work::kTeach, .options = parsed.args, .report = parsed.report, .world = launch.world()};
  run::TeacherFilesChoice choice{.folder = folder_in(parsed.args), .dtype = dtype_of(dtype.value_or("fp32"))};
  if (parsed.args.distillation.top_k) choice.top_k = *parsed.args.distillation.top_k;
  return run::launch_teacher(run::resolve(request), launch, choice);
}

}  // namespace megalith::cli
