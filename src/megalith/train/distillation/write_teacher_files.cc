// The teacher runs like an evaluation: micro-batches are shared among replicas by number, and the last stage of each
// finds the likeliest tokens. Only labelled tokens are projected. Context-parallel ranks have slices of a text, so they
// bring their rows together in the order of the text; the first rank of a replica then cuts them into texts.
#include "megalith/train/distillation/write_teacher_files.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/task_progress.h"
#include "megalith/comm/world.h"
#include "megalith/io/json_text.h"
#include "megalith/io/staged_folder.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/train/distillation/kept_distillation_loss.h"
#include "megalith/train/distillation/taught_objective.h"
#include "megalith/train/distillation/taught_samples.h"
#include "megalith/train/distillation/teacher_shard_writer.h"
#include "megalith/train/saving/shared_folder.h"

namespace megalith::train {

namespace {

TeacherIndex empty_index(const TeacherFilesRequest& request, int64_t vocab_size) {
  check<ConfigError>(request.classes >= 1, "top_k is {}; it must be at least 1", request.classes);
  TeacherIndex index{.classes = std::min(request.classes, vocab_size),
                     .vocab_size = vocab_size,
                     .dtype = request.dtype,
                     .temperatures = {1},
                     .teacher = request.teacher,
                     .data = request.data};
  if (request.temperature != 1) index.temperatures.push_back(request.temperature);
  return index;
}

// Runs over one dataset after the other.
class TeacherPass {
 public:
  TeacherPass(TeacherModel& teacher, const TeacherIndex& index, TeacherShardWriter& writer,
              const parallel::ParallelContext& context)
      : teacher_(teacher), index_(index), writer_(writer), context_(context) {}

  void run(const EvalData& data, int64_t micro_batch_size) {
    const EvalReader reader(data, micro_batch_size, context_);
    const int64_t group = 4 * context_.grid().shape().pp;  // enough micro-batches to keep a pipeline busy
    TaskProgress progress("running the teacher", TaskProgress::Unit::kCount, reader.samples(), "samples",
                          context_.rank() == 0);
    for (int64_t first = 0; first < reader.microbatches();) {
      const auto wanted = static_cast<int>(std::min(group, reader.microbatches() - first));
      std::vector<data::MicroBatch> batches;
      for (int i = 0; i < teacher_.group_size(wanted); ++i) batches.push_back(reader.microbatch(first + i));
      teacher_.run(batches);
      for (size_t i = 0; context_.is_last_stage() && i < batches.size(); ++i)
        keep(data, batches[i], static_cast<int>(i), reader.first_sample(first + static_cast<int64_t>(i)));
      first += std::ssize(batches);
      progress.set(reader.samples() * std::min(first, reader.microbatches()) / reader.microbatches());
    }
  }

 private:
  // Hands the texts of a micro-batch to the writer, on the rank that speaks for its replica.
  void keep(const EvalData& data, const data::MicroBatch& batch, int microbatch, int64_t first_sample) {
    const LikeliestTokens all = labelled_tokens(batch, microbatch);
    if (!teacher_.counts_for_replica()) return;
    int64_t row = 0;
    for (int64_t i = 0; i < batch.samples; ++i)
      for (const TaughtUnit& unit : units_of(data.dataset->sample(first_sample + i).row)) {
        const auto n = std::ssize(unit.labels);
        writer_.add(unit.key,
                    {all.ids.narrow(0, row, n), all.log_probs.narrow(0, row, n), all.log_tails.narrow(0, row, n)});
        row += n;
      }
    check(row == batch.loss_tokens, "a micro-batch has {} labelled tokens, and its samples {}", batch.loss_tokens, row);
  }

  // Returns the rows of the labelled tokens in the order of the micro-batch, on the CPU, on every rank of the last
  // stage.
  LikeliestTokens labelled_tokens(const data::MicroBatch& batch, int microbatch) const {
    const comm::Group cp = context_.cp();
    const ops::SequenceLayout slice = nn::slice_layout(batch.layout, cp.rank(), cp.size());
    const at::Tensor labels = nn::slice_tokens(batch.labels, batch.layout, cp.rank(), cp.size());
    const at::Tensor here = labels.ne(data::kIgnoredLabel).nonzero().view({-1}).to(context_.device());
    const LikeliestTokens found = project(teacher_.hidden(microbatch).index_select(0, here));
    const at::Tensor labelled = batch.labels.ne(data::kIgnoredLabel).nonzero().view({-1});
    // [rows of this slice, …] -> [labelled tokens of the whole, …]
    const auto whole = [&](const at::Tensor& rows) {
      std::vector<int64_t> shape = rows.sizes().vec();
      shape[0] = labels.size(0);
      const at::Tensor in_slice = at::zeros(shape, rows.options()).index_copy_(0, here, rows);
      return nn::gather_slices(in_slice, slice, cp).cpu().index_select(0, labelled);
    };
    return {whole(found.ids), whole(found.log_probs), whole(found.log_tails)};
  }

  // Some tokens at a time: logits of a whole micro-batch would not fit.
  LikeliestTokens project(const at::Tensor& hidden) const {
    const comm::Group tp = teacher_.tp();
    const int64_t count = hidden.size(0);
    std::vector<at::Tensor> ids, log_probs, log_tails;
    for (int64_t first = 0; first == 0 || first < count; first += TaughtObjective::kSliceTokens) {
      const int64_t c = std::min(TaughtObjective::kSliceTokens, count - first);
      const LikeliestTokens slice = likeliest_tokens(teacher_.logits(hidden.narrow(0, first, c)),
                                                     teacher_.vocab_range(), tp, index_.classes, index_.temperatures);
      ids.push_back(slice.ids);
      log_probs.push_back(slice.log_probs);
      log_tails.push_back(slice.log_tails);
    }
    return {at::cat(ids), at::cat(log_probs), at::cat(log_tails)};
  }

  TeacherModel& teacher_;
  const TeacherIndex& index_;
  TeacherShardWriter& writer_;
  const parallel::ParallelContext& context_;
};

std::string as_text(const std::vector<TeacherShard>& shards) {
  io::Json list = io::Json::array();
  for (const TeacherShard& shard : shards) list.push_back({shard.file, shard.samples, shard.tokens, shard.crc32c});
  return list.dump();
}

// Rank 0 learns the files of all replicas.
std::vector<TeacherShard> gathered(const std::vector<TeacherShard>& mine, const comm::Group& world) {
  std::vector<TeacherShard> all;
  for (const std::string& text : world.gather_bytes(as_text(mine), 0, "files of a teacher's logits"))
    for (const io::Json& shard : io::parse_json(text, "the list of files"))
      all.push_back({shard.at(0), shard.at(1), shard.at(2), shard.at(3)});
  std::ranges::sort(all, {}, &TeacherShard::file);
  return all;
}

}  // namespace

TeacherIndex write_teacher_files(std::span<const EvalData> datasets, TeacherModel& teacher,
                                 const TeacherFilesRequest& request, parallel::ParallelContext& context) {
  const at::NoGradGuard no_grad;
  const comm::Group world = context.world().world();
  const bool first_rank = context.rank() == 0;
  TeacherIndex index = empty_index(request, teacher.vocab_size());
  const std::filesystem::path target = std::filesystem::absolute(request.folder);
  check_shared_folder(target.parent_path(), context.world());
  io::StagedFolder staged(target, "logits", {.owner = first_rank});
  world.barrier("folder of a teacher's logits");
  TeacherShardWriter writer(staged.path(), index, context.place().dp_rank, request.file_bytes);
  TeacherPass pass(teacher, index, writer, context);
  for (const EvalData& data : datasets) pass.run(data, request.micro_batch_size);
  index.shards = gathered(writer.finish(), world);
  if (first_rank) write_teacher_index(staged.path(), index);
  staged.commit();
  world.barrier("a teacher's logits are complete");
  return index;
}

}  // namespace megalith::train
