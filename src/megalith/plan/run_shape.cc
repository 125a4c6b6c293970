// Completes and checks a run as the planner sees it. A layout that is impossible is a ConfigError with the messages of
// the run itself, since the search skips such layouts and a user should read the same words in both places.
#include "megalith/plan/run_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "megalith/base/error.h"
#include "megalith/model/block_parts.h"
#include "megalith/model/vision_part.h"
#include "megalith/plan/adapter_problems.h"

namespace megalith::plan {

namespace {

// Collects messages.
class Problems {
 public:
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
    if (!holds) found_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  void add(const std::vector<std::string>& more) { found_.insert(found_.end(), more.begin(), more.end()); }
  std::vector<std::string> take() { return std::move(found_); }

 private:
  std::vector<std::string> found_;
};

layout::SplitRequest split_request(const RunShape& run) {
  layout::SplitRequest request = run.stages;
  request.num_layers = static_cast<int>(run.model->num_layers);
  request.mtp_layers = static_cast<int>(run.model->mtp_layers);
  request.pp = run.grid.pp;
  return request;
}

// Pads as the collator does: two halves for each context-parallel rank (balanced causal attention), and equal shares
// for each tensor-parallel rank.
int64_t padded_length(const RunShape& run) {
  int64_t multiple = run.grid.cp > 1 ? 2 * run.grid.cp : 1;
  if (run.options.sequence_parallel) multiple = std::lcm(multiple, int64_t{run.grid.cp} * run.grid.tp);
  return (run.sequence_length + multiple - 1) / multiple * multiple;
}

// A dense model on ep > 1 would be planned as if it had experts.
void check_experts(const RunShape& run, Problems& problems) {
  const model::ModelConfig& m = *run.model;
  if (!m.moe) {
    problems.require(run.grid.ep == 1, "expert_model_parallel_size {}: a {} model has no experts; use 1", run.grid.ep,
                     m.family);
    return;
  }
  nn::MoeShape shape = *m.moe;
  shape.hidden = m.hidden_size;
  problems.add(nn::problems(shape, run.grid.ep, run.grid.expert_tp()));
}

// Rows of the tower that are added after the first layers reach only those of the first chunk.
void check_deepstack(const RunShape& run, Problems& problems) {
  const layout::SplitRequest request = split_request(run);
  if (!run.model->vision || !layout::problems(request).empty()) return;
  const std::string problem =
      model::deepstack_problem(*run.model, layout::LayerSplit(request).stages().front().num_layers);
  problems.require(problem.empty(), "{}", problem);
}

}  // namespace

// Tokens of one micro-batch on one context-parallel rank.
double RunShape::tokens() const {
  return static_cast<double>(sequences()) * static_cast<double>(sequence_length) / grid.cp;
}

double RunShape::shard_tokens() const { return options.sequence_parallel ? tokens() / grid.tp : tokens(); }

layout::LayerSplit RunShape::split() const { return layout::LayerSplit(split_request(*this)); }

RunShape teacher_shape(const RunShape& run) {
  RunShape teacher = run;
  teacher.model = run.teacher.get();
  teacher.teacher.reset();
  teacher.options.adapter.reset();
  if (!teacher.model->moe) teacher.grid.ep = 1;  // it has no experts to distribute
  return teacher;
}

std::vector<std::string> teacher_problems(const RunShape& run) {
  if (!run.teacher) return {};
  const RunShape teacher = teacher_shape(run);
  Problems problems;
  problems.add(model::tensor_parallel_problems(*teacher.model, teacher.grid.tp));
  check_experts(teacher, problems);
  problems.require(!teacher.model->moe || teacher.grid.tp == 1 || teacher.options.sequence_parallel,
                   "its experts need sequence_parallel with tensor_model_parallel_size {}", teacher.grid.tp);
  problems.add(model::context_parallel_problems(*teacher.model, teacher.grid.tp, teacher.grid.cp));
  problems.add(layout::problems(split_request(teacher)));
  return problems.take();
}

std::vector<std::string> layout_problems(const RunShape& run) {
  Problems problems;
  problems.add(model::tensor_parallel_problems(*run.model, run.grid.tp));
  check_experts(run, problems);
  problems.add(model::context_parallel_problems(*run.model, run.grid.tp, run.grid.cp));
  problems.add(layout::problems(split_request(run)));
  check_deepstack(run, problems);
  problems.add(layout::problems(run.pipeline));
  problems.add(adapter_problems(run));
  for (const std::string& problem : teacher_problems(run)) problems.require(false, "the teacher: {}", problem);
  return problems.take();
}

// The grid comes first: the other checks divide by its sizes.
RunShape complete(RunShape run) {
  check<ConfigError>(run.sequence_length >= 1, "the sequence length is {}; it must be positive", run.sequence_length);
  std::vector<std::string> found;
  for (const layout::GridProblem& problem : layout::problems(run.grid)) found.push_back(problem.message);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "\n"));
  if (run.model->moe && run.grid.tp > 1) run.options.sequence_parallel = true;  // as a run does, with a warning
  run.sequence_length = padded_length(run);
  run.pipeline.microbatches = static_cast<int>(run.microbatches);
  found = layout_problems(run);
  check<ConfigError>(found.empty(), "{}", fmt::join(found, "\n"));
  return run;
}

}  // namespace megalith::plan
