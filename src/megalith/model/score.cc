#include "megalith/model/score.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/hf/staged_folder.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::model {

namespace {

namespace fs = std::filesystem;

// Rows as a forward pass takes them, and the way back.
struct FlatRows {
  ops::SequenceLayout layout;
  at::Tensor ids, labels;  // int64 [t]
  at::Tensor cells;        // int64: which cell of [b, s] a token stands in; tokens behind are padding for sequence
                           // parallelism
};

bool padded_on_the_right(const at::Tensor& mask) {
  return !mask.defined() ||
         mask.narrow(1, 1, mask.size(1) - 1).le(mask.narrow(1, 0, mask.size(1) - 1)).all().item<bool>();
}

// Sequences without their padding; columns stay their positions.
FlatRows without_padding(const ScoreBatch& rows) {
  FlatRows flat;
  const at::Tensor kept = rows.attention_mask.ne(0);
  flat.cells = kept.reshape({-1}).nonzero().reshape({-1});
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < kept.size(0); ++row)
    if (const auto length = kept[row].sum().item<int64_t>(); length > 0) lengths.push_back(length);
  flat.layout = ops::SequenceLayout::packed(lengths).with_positions(flat.cells.remainder(kept.size(1)));
  return flat;
}

FlatRows flatten(const ScoreBatch& rows, int64_t multiple) {
  const int64_t b = rows.input_ids.size(0), s = rows.input_ids.size(1);
  FlatRows flat;
  if (padded_on_the_right(rows.attention_mask)) {
    flat.layout = ops::SequenceLayout::dense(b, s);
    flat.cells = at::arange(b * s, at::kLong);
  } else {
    flat = without_padding(rows);
  }
  flat.ids = rows.input_ids.reshape({-1}).index_select(0, flat.cells);
  flat.labels = rows.labels.reshape({-1}).index_select(0, flat.cells);
  const int64_t extra = (multiple - flat.ids.size(0) % multiple) % multiple;
  if (extra == 0) return flat;
  const at::Tensor positions = at::cat({flat.layout.positions(at::kCPU), at::arange(extra, at::kLong)});
  auto ends = flat.layout.cumulative();
  ends.push_back(ends.back() + extra);
  flat.layout = ops::SequenceLayout::from_cumulative(std::move(ends)).with_positions(positions);
  flat.ids = at::cat({flat.ids, at::zeros({extra}, at::kLong)});
  flat.labels = at::cat({flat.labels, at::full({extra}, -100, at::kLong)});
  return flat;
}

// Without labels every token that is no padding is one.
ScoreBatch with_labels(ScoreBatch batch) {
  if (batch.labels.defined()) return batch;
  batch.labels = batch.input_ids;
  if (batch.attention_mask.defined()) batch.labels = batch.labels.masked_fill(batch.attention_mask.eq(0), -100);
  return batch;
}

ScoreBatch row_range(const ScoreBatch& batch, int64_t first, int64_t count) {
  const auto part = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, first, count) : t; };
  return {part(batch.input_ids), part(batch.attention_mask), part(batch.labels)};
}

}  // namespace

ScoredRows score_rows(const GptModel& model, const ScoreBatch& given, bool want_logits) {
  const at::NoGradGuard no_grad;
  const ScoreBatch rows = with_labels(given);
  const int64_t b = rows.input_ids.size(0), s = rows.input_ids.size(1);
  const comm::Group tp = model.tensor_parallel().group;
  const FlatRows flat = flatten(rows, model.tensor_parallel().splits_tokens() ? tp.size() : 1);
  const at::Device device = model.options().device;
  ModelInput input{.layout = flat.layout, .ids = flat.ids.to(device), .training = false};
  ScoredRows result;
  const int64_t real = flat.cells.size(0);
  if (want_logits) {
    const at::Tensor all = nn::all_gather_columns(model.forward(input), tp, "logits").narrow(0, 0, real);
    result.logits = at::zeros({b * s, model.vocab().size}, at::kFloat);
    result.logits.index_copy_(0, flat.cells, all.narrow(1, 0, model.vocab().size).to(at::kCPU, at::kFloat));
    result.logits = result.logits.view({b, s, -1});
  }
  input.targets = shift_labels(flat.labels, flat.layout).to(device);
  const at::Tensor losses = model.forward(input).narrow(0, 0, real).to(at::kCPU);
  result.token_losses = at::zeros({b * s}, at::kFloat).index_copy_(0, flat.cells, losses).view({b, s});
  return result;
}

ScoreTotal score_to_file(const VirtualModels& models, const ScoreBatch& given, const fs::path& output,
                         const ScoreOptions& options) {
  check<ConfigError>(models.size() == 1 && models[0].place().embedding && models[0].place().head,
                     "scoring runs on whole models; use pipeline_model_parallel_size 1");
  check<ConfigError>(options.rows > 0, "per_device_eval_batch_size is {}; it must be positive", options.rows);
  const ScoreBatch batch = with_labels(given);
  const GptModel& model = models[0];
  const int64_t b = batch.input_ids.size(0), s = batch.input_ids.size(1);
  parallel::ParallelContext& context = models.context();
  const comm::Group everyone = context.world().world(), dp = context.dp();
  const bool first_rank = context.rank() == 0;

  std::vector<hf::WeightSpec> specs{{"token_losses", hf::Dtype::kF32, {b, s}}, {"loss", hf::Dtype::kF32, {}}};
  if (options.logits) specs.push_back({"logits", hf::Dtype::kF32, {b, s, model.vocab().size}});
  const fs::path staging = output.string() + ".tmp";
  hf::StagedFolder staged(staging, "score", {.owner = first_rank, .overwrite = true});
  hf::WeightWriter writer(staged.path(), specs, {.max_shard_bytes = UINT64_MAX});
  if (first_rank) writer.create_files();
  everyone.barrier("score: file made");
  at::Tensor sums = at::zeros({2}, at::kDouble);  // loss, labelled tokens
  // All take the same number of turns: ranks may share experts. Who has no rows left repeats the first ones, for
  // nothing.
  for (int64_t round = 0; round < b; round += options.rows * dp.size()) {
    const int64_t own = round + options.rows * dp.rank();
    const int64_t first = own < b ? own : 0, count = std::min(options.rows, b - first);
    const ScoreBatch part = row_range(batch, first, count);
    const ScoredRows rows = score_rows(model, part, options.logits);
    if (own >= b) continue;
    sums[0] += rows.token_losses.sum(at::kDouble);
    sums[1] += part.labels.narrow(1, 1, s - 1).ne(-100).sum();
    if (context.place().tp_rank != 0) continue;
    writer.write("token_losses", {first, 0}, rows.token_losses);
    if (options.logits) writer.write("logits", {first, 0, 0}, rows.logits);
  }
  sums = sums.to(model.options().device);
  dp.all_reduce(sums, comm::ReduceOp::kSum, "score: loss");
  sums = sums.cpu();
  ScoreTotal total{0, sums[1].to(at::kLong).item<int64_t>()};
  if (total.num_label_tokens > 0) total.loss = sums[0].item<double>() / static_cast<double>(total.num_label_tokens);
  if (first_rank) writer.write("loss", {}, at::scalar_tensor(total.loss, at::kFloat));
  writer.sync();
  everyone.barrier("score: written");
  if (first_rank) fs::rename(staged.path() / writer.file_names().at(0), output);
  return total;
}

}  // namespace megalith::model
