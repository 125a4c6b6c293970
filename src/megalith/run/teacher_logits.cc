#include "megalith/run/teacher_logits.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/run/load_model.h"
#include "megalith/run/rank_main.h"
#include "megalith/train/distillation/taught_samples.h"

namespace megalith::run {

namespace {

const char* packing_of(data::Packing packing) {
  switch (packing) {
    case data::Packing::kNone:
      return "none";
    case data::Packing::kPlain:
      return "plain";
    case data::Packing::kNeat:
      return "neat";
  }
  return "unknown";
}

// The options that shape samples, by name: kept in the files, so that a message can say which of them differ.
std::map<std::string, std::string> sample_options(const data::DataRequest& request) {
  const data::SftSettings& data = request.data;
  const auto words = [](bool value) { return value ? "true" : "false"; };
  return {{"dataset", fmt::format("{}", fmt::join(data.dataset, ","))},
          {"template", data.chat.name.value_or("the tokenizer's own")},
          {"default_system", data.chat.options.default_system.value_or("none")},
          {"cutoff_len", std::to_string(data.cutoff_len)},
          {"packing", packing_of(data.packing)},
          {"train_on_prompt", words(data.train_on_prompt)},
          {"mask_history", words(data.mask_history)}};
}

// All samples of a run, with names for messages.
std::vector<train::EvalData> all_data(const RunData& data) {
  std::vector<train::EvalData> all;
  if (data.train) {
    check<ConfigError>(data.train->dataset != nullptr, "a teacher's logits and streaming exclude each other");
    all.push_back({.dataset = data.train->dataset, .collator = *data.train->collator, .name = "training data"});
  }
  for (const train::EvalData& eval : data.eval) all.push_back(eval);
  return all;
}

std::string name_of(const train::EvalData& eval) {
  return eval.name.empty() ? "evaluation data" : fmt::format("evaluation data \"{}\"", eval.name);
}

void write_on_rank(const RunPlan& plan, const TeacherFilesChoice& choice, parallel::ParallelContext& context) {
  const auto start = std::chrono::steady_clock::now();
  const RunData data = open_run_data(plan.data, context.rank() == 0);
  const std::unique_ptr<train::TeacherModel> teacher = load_teacher(*plan.distillation, plan.settings, context);
  const train::TeacherFilesRequest request{.folder = choice.folder,
                                           .classes = choice.top_k,
                                           .dtype = choice.dtype,
                                           .temperature = plan.distillation->loss.temperature,
                                           .teacher = plan.options.distillation.teacher.value_or(""),
                                           .data = sample_options(plan.data.request),
                                           .micro_batch_size = plan.settings.trainer.eval.micro_batch_size};
  const std::vector<train::EvalData> all = all_data(data);
  const train::TeacherIndex index = train::write_teacher_files(all, *teacher, request, context);
  if (context.rank() != 0) return;
  int64_t samples = 0, tokens = 0;
  for (const train::TeacherShard& shard : index.shards) samples += shard.samples, tokens += shard.tokens;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  log_info("the {} likeliest tokens of {} labelled tokens in {} texts are in {} ({} files, {:.1f} s)", index.classes,
           tokens, samples, choice.folder.string(), index.shards.size(), seconds.count());
}

}  // namespace

// Rank 0 waits for the others anyway, so all open the files at once.
void attach_teacher_files(const RunPlan& plan, const parallel::ParallelContext& context, RunData& data) {
  if (!plan.distillation || plan.distillation->files.empty()) return;
  const train::DistillationSettings& loss = plan.distillation->loss;
  const auto files = std::make_shared<const train::TeacherFiles>(plan.distillation->files);
  const auto options = sample_options(plan.data.request);
  const auto taught = [&](const std::shared_ptr<const data::Dataset>& dataset, const std::string& what) {
    train::check_taught(*dataset, *files, options, what, context);
    return train::with_teacher_files(dataset, files, loss.temperature, loss.tail);
  };
  if (data.train) {
    check<ConfigError>(data.train->dataset != nullptr, "teacher_logits_path and streaming exclude each other");
    const data::Collator collator = *data.train->collator;
    data.train =
        train::numbered_data(taught(data.train->dataset, "training data"), data.train->sampler->options(), collator);
  }
  for (train::EvalData& eval : data.eval) eval.dataset = taught(eval.dataset, name_of(eval));
  if (context.rank() == 0)
    log_info("the {} likeliest tokens of {} are taken from {}", loss.classes.value_or(files->index().classes),
             files->index().teacher, files->folder().string());
}

int launch_teacher(const RunPlan& plan, const LaunchFlags& launch, const TeacherFilesChoice& choice) {
  for (const std::string& warning : plan.warnings) log_warning("{}", warning);
  return launch.run([&] {
    return run_as_rank(plan.settings.runtime,
                       [&](parallel::ParallelContext& context) { write_on_rank(plan, choice, context); });
  });
}

}  // namespace megalith::run
