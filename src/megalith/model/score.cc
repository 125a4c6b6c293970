// Scoring flattens the rows of a batch into one packed sequence layout, runs the model once for losses and once for
// logits, if wanted, and scatters the results back into [b, s]. Padding is added where tensor or context parallelism
// needs multiples; its entries are dropped again on the way back.
#include "megalith/model/score.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/io/staged_folder.h"
#include "megalith/nn/context_parallel/slice.h"
#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::model {

namespace {

namespace fs = std::filesystem;

// Rows in the form that a forward pass takes, and the map back. Sequences and their total are padded so that they can
// be split.
struct FlatRows {
  ops::SequenceLayout layout;
  at::Tensor ids, labels;  // int64 [t]; 0 and -100 for padding
  // int64: the tokens that are not padding, and their cells in [b, s].
  at::Tensor tokens, cells;
};

// A mask such as 1 1 1 0 0 never rises from one column to the next.
bool padded_on_the_right(const at::Tensor& mask) {
  return !mask.defined() ||
         mask.narrow(1, 1, mask.size(1) - 1).le(mask.narrow(1, 0, mask.size(1) - 1)).all().item<bool>();
}

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Returns the cells of each sequence: whole rows if padding is only on the right, else those that the mask keeps.
std::vector<at::Tensor> sequences_of(const ScoreBatch& rows) {
  const int64_t b = rows.input_ids.size(0), s = rows.input_ids.size(1);
  const bool whole = padded_on_the_right(rows.attention_mask);
  std::vector<at::Tensor> sequences;
  for (int64_t row = 0; row < b; ++row) {
    at::Tensor columns = whole ? at::arange(s, at::kLong) : rows.attention_mask[row].ne(0).nonzero().reshape({-1});
    if (columns.size(0) > 0) sequences.push_back(columns + row * s);
  }
  return sequences;
}

// Flattens rows; columns become positions. The length of each sequence is padded to a multiple of `length`, that of all
// together to a multiple of `total`.
FlatRows flatten(const ScoreBatch& rows, int64_t length, int64_t total) {
  const int64_t s = rows.input_ids.size(1);
  std::vector<int64_t> lengths;
  std::vector<at::Tensor> tokens, cells;
  int64_t filled = 0;
  for (const at::Tensor& sequence : sequences_of(rows)) {
    tokens.push_back(at::arange(filled, filled + sequence.size(0), at::kLong));
    cells.push_back(sequence);
    lengths.push_back(round_up(sequence.size(0), length));
    filled += lengths.back();
  }
  const int64_t all = round_up(std::max<int64_t>(filled, 1), std::lcm(length, total));
  if (all > filled) lengths.push_back(all - filled);
  // All rows may be empty; then the padding alone is one sequence, so that every rank still runs the model.
  const at::Tensor none = at::empty({0}, at::kLong);
  FlatRows flat;
  flat.tokens = tokens.empty() ? none : at::cat(tokens);
  flat.cells = cells.empty() ? none : at::cat(cells);
  // [number of real tokens] -> [t], with `padding` in the cells between.
  const auto spread = [&](const at::Tensor& values, int64_t padding) {
    return at::full({all}, padding, at::kLong).index_copy_(0, flat.tokens, values);
  };
  flat.ids = spread(rows.input_ids.reshape({-1}).index_select(0, flat.cells), 0);
  flat.labels = spread(rows.labels.reshape({-1}).index_select(0, flat.cells), -100);
  flat.layout = ops::SequenceLayout::packed(lengths).with_positions(spread(flat.cells.remainder(s), 0));
  return flat;
}

// Without labels, every token that is not padding is its own label.
ScoreBatch with_labels(ScoreBatch batch) {
  if (batch.labels.defined()) return batch;
  batch.labels = batch.input_ids;
  if (batch.attention_mask.defined()) batch.labels = batch.labels.masked_fill(batch.attention_mask.eq(0), -100);
  return batch;
}

// Ids of cells that the mask leaves out may be anything.
void check_ids(const ScoreBatch& batch, int64_t vocab) {
  const auto check_range = [&](const char* name, const at::Tensor& ids) {
    if (ids.numel() == 0) return;
    const int64_t low = ids.min().item<int64_t>(), high = ids.max().item<int64_t>();
    check<DataError>(low >= 0 && high < vocab,
                     "{} has the token id {}, which is outside of the model's vocabulary of {}", name,
                     low < 0 ? low : high, vocab);
  };
  check_range("input_ids", batch.attention_mask.defined() ? batch.input_ids.masked_select(batch.attention_mask.ne(0))
                                                          : batch.input_ids);
  check_range("labels", batch.labels.masked_select(batch.labels.ne(-100)));
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
  const comm::Group tp = model.tensor_parallel().group, cp = model.context().cp();
  // Zigzag slices need sequences of multiples of 2·cp; sequence parallelism, a slice of a multiple of tp.
  const FlatRows flat = flatten(rows, cp.size() > 1 ? 2 * cp.size() : 1,
                                cp.size() * (model.tensor_parallel().splits_tokens() ? tp.size() : 1));
  const at::Device device = model.options().device;
  const auto slice = [&](const at::Tensor& tokens) {
    return nn::slice_tokens(tokens, flat.layout, cp.rank(), cp.size()).to(device);
  };
  ModelInput input{
      .layout = nn::slice_layout(flat.layout, cp.rank(), cp.size()), .ids = slice(flat.ids), .training = false};
  // Undoes slicing over cp and packing, in this order.
  // [t, …] of the slice -> [b s, …], with 0 in cells without a token.
  const auto in_cells = [&](const at::Tensor& own) {
    const at::Tensor tokens = nn::gather_slices(own, input.layout, cp).to(at::kCPU, at::kFloat);
    std::vector<int64_t> shape = tokens.sizes().vec();
    shape[0] = b * s;
    return at::zeros(shape, at::kFloat).index_copy_(0, flat.cells, tokens.index_select(0, flat.tokens));
  };
  ScoredRows result;
  if (want_logits) {
    const at::Tensor logits = nn::all_gather_columns(model.forward(input), tp, "logits");
    result.logits = in_cells(logits.narrow(1, 0, model.vocab().size)).view({b, s, -1});
  }
  // Labels are shifted before they are sliced: the next token of a slice's last one is on another rank.
  input.targets = slice(shift_labels(flat.labels, flat.layout));
  result.token_losses = in_cells(model.forward(input)).view({b, s});
  return result;
}

ScoreTotal score_to_file(const VirtualModels& models, const ScoreBatch& given, const fs::path& output,
                         const ScoreOptions& options) {
  check<ConfigError>(models.size() == 1 && models[0].place().embedding && models[0].place().head,
                     "scoring runs on whole models; use pipeline_model_parallel_size 1");
  check<ConfigError>(!options.logits || models[0].head()->predicts_tokens(),
                     "the head of {} models does not compute logits; score without them", models.config().family);
  check<ConfigError>(options.rows > 0, "per_device_eval_batch_size is {}; it must be positive", options.rows);
  const ScoreBatch batch = with_labels(given);
  check_ids(batch, models.config().vocab_size);
  const GptModel& model = models[0];
  const int64_t b = batch.input_ids.size(0), s = batch.input_ids.size(1);
  parallel::ParallelContext& context = models.context();
  const comm::Group everyone = context.world().world(), dp = context.dp();
  const bool first_rank = context.rank() == 0;

  // The result is one safetensors file. Its shapes are known beforehand, so all ranks write into it in place.
  std::vector<hf::WeightSpec> specs{{"token_losses", hf::Dtype::kF32, {b, s}}, {"loss", hf::Dtype::kF32, {}}};
  if (options.logits) specs.push_back({"logits", hf::Dtype::kF32, {b, s, model.vocab().size}});
  const fs::path staging = output.string() + ".tmp";
  io::StagedFolder staged(staging, "score", {.owner = first_rank, .overwrite = true});
  hf::WeightWriter writer(staged.path(), specs, {.max_shard_bytes = UINT64_MAX});
  if (first_rank) writer.create_files();
  everyone.barrier("score: file made");
  at::Tensor sums = at::zeros({2}, at::kDouble);  // loss, labeled tokens
  // All ranks run the same number of rounds, because they may share experts. A rank without rows left repeats the first
  // ones and discards the result.
  for (int64_t round = 0; round < b; round += options.rows * dp.size()) {
    // Rows are dealt out in turns: round r gives each data-parallel rank `rows` consecutive ones.
    const int64_t own = round + options.rows * dp.rank();
    const int64_t first = own < b ? own : 0, count = std::min(options.rows, b - first);
    const ScoreBatch part = row_range(batch, first, count);
    const ScoredRows rows = score_rows(model, part, options.logits);
    if (own >= b) continue;
    sums[0] += rows.token_losses.sum(at::kDouble);
    sums[1] += part.labels.narrow(1, 1, s - 1).ne(-100).sum();
    // Ranks of one tp and cp group have the same results; one of them writes.
    if (context.place().tp_rank != 0 || context.place().cp_rank != 0) continue;
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
