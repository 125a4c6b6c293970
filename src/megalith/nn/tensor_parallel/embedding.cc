// Vocabulary-parallel embedding. Each rank looks up the ids in its own range; others read row 0 and are zeroed, and the
// sum over the ranks has exactly one nonzero summand per token. With sequence parallelism the sum is a reduce-scatter
// over tokens. Backward adds the rows of dy to the gradient of the ids that this rank holds; a masked token adds zero
// to row 0.
#include "megalith/nn/tensor_parallel/embedding.h"

#include <ATen/ATen.h>

#include <memory>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/layout/vocab_split.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/update/gradient_sums.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

// State that forward keeps for backward besides tensors.
struct EmbeddingState {
  Parameter* weight;
  TensorParallel tp;
  ops::VocabRange range;
  const LowRank* update = nullptr;                          // the one that was active in forward
  std::shared_ptr<const LowRankFactors> factors = nullptr;  // the update's products: A is looked up, B multiplies
};

// Maps ids of the whole vocabulary to rows of this rank; ids held elsewhere map to row 0 and are marked in `elsewhere`.
struct LocalRows {
  at::Tensor rows;       // int64 [t]
  at::Tensor elsewhere;  // bool [t, 1]; undefined if this rank holds all ids
};
LocalRows local_rows(const at::Tensor& ids, const EmbeddingState& state) {
  if (state.tp.size() == 1) return {ids, {}};
  const at::Tensor elsewhere = ids.lt(state.range.begin).logical_or_(ids.ge(state.range.end));
  return {(ids - state.range.begin).masked_fill_(elsewhere, 0), elsewhere.unsqueeze(1)};
}

// Adds dy [t, h] to main_grad at the rows that were looked up; without main_grad, returns the gradient of the table.
at::Tensor add_row_grads(Parameter& table, const at::Tensor& rows, const at::Tensor& dy) {
  if (!table.grad.main_grad.defined())
    return at::zeros_like(table.value).index_add_(0, rows, dy.to(table.value.scalar_type()));
  if (table.grad.stale) table.grad.main_grad.zero_();
  table.grad.stale = false;
  ops::add_to_rows_(table.grad.main_grad, rows, dy);
  return {};
}

// Lookup in a replicated table.
struct TableRows : Function<TableRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& values, const at::Tensor& rows, Parameter* table) {
    ctx->save_for_backward({rows});
    ops::save_state(ctx, table);
    return values.index_select(0, rows);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::NoGradGuard no_grad;
    if (!ctx->needs_input_grad(0)) return {{}, {}, {}};
    return {add_row_grads(*ops::saved_state<Parameter*>(ctx), ctx->get_saved_variables()[0], grads[0]), {}, {}};
  }
};

// The update's part is added before the masking, so that ids of other ranks lose both at once; the one collective then
// sums weight and update together.
struct Embedding : Function<Embedding> {
  using MaybeTensor = std::optional<at::Tensor>;

  // `a` [v/tp, r] and `b` [h, r] are the factors of the update.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const at::Tensor& ids, const MaybeTensor& a,
                            const MaybeTensor& /*b*/, const EmbeddingState& state) {
    const auto [rows, elsewhere] = local_rows(ids, state);
    at::Tensor out = weight.index_select(0, rows);  // [t, h]
    at::Tensor h;                                   // [t, r]
    if (a) {
      h = a->detach().index_select(0, rows).to(out.scalar_type());
      state.factors->add_output(h, out);
    }
    ctx->save_for_backward({ids, h});
    ops::save_state(ctx, state);
    if (state.tp.size() == 1) return out;
    out.masked_fill_(elsewhere, 0);
    if (state.tp.splits_tokens()) return reduce_scatter_rows(out, state.tp.group, "embedding");
    state.tp.group.all_reduce(out, comm::ReduceOp::kSum, "embedding");
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& state = ops::saved_state<EmbeddingState>(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &ids = saved[0], &h = saved[1];
    // With sequence parallelism a rank has the gradient of its tokens but looks up ids of all tokens: gather first.
    at::Tensor dy =
        state.tp.splits_tokens() ? all_gather_rows(grads[0], state.tp.group, "embedding backward") : grads[0];
    const auto [rows, elsewhere] = local_rows(ids, state);
    if (elsewhere.defined()) dy = dy.masked_fill(elsewhere, 0);
    const at::NoGradGuard no_grad;
    at::Tensor dw, da, db;
    if (ctx->needs_input_grad(0)) dw = add_row_grads(*state.weight, rows, dy);
    if (state.update && state.update->a->value.requires_grad())
      da = add_row_grads(*state.update->a, rows, state.factors->hidden_grad(dy));
    if (state.update && state.update->b->value.requires_grad()) db = state.factors->b_grad(dy, h);
    return {dw, {}, da, db, {}};
  }
};

// Only on the CPU: on CUDA it would make the host wait for the device.
void check_ids(const at::Tensor& ids, int64_t vocab) {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const auto [low, high] = at::aminmax(ids.to(at::kLong));
  const int64_t smallest = *low.const_data_ptr<int64_t>(), largest = *high.const_data_ptr<int64_t>();
  const int64_t bad = smallest < 0 ? smallest : largest;
  check<DataError>(bad >= 0 && bad < vocab,
                   "token id {} is not in the vocabulary of {} ids; the data was probably tokenized with another"
                   " tokenizer. Tokenize it again with this model's, or add the new tokens to the model folder",
                   bad, vocab);
}

}  // namespace

ops::VocabRange vocab_range(const VocabSize& vocab, const TensorParallel& tp) {
  const auto ids = layout::valid_vocab_range(vocab.size, vocab.padded, tp.size(), tp.rank());
  return {ids.begin, ids.end, vocab.size};
}

at::Tensor table_rows(Parameter& table, const at::Tensor& rows) { return TableRows::apply(table.value, rows, &table); }

VocabParallelEmbedding::VocabParallelEmbedding(const ParameterScope& scope, const VocabSize& vocab, int64_t hidden,
                                               Init init, TensorParallel tp, ParameterRole role)
    : tp_(std::move(tp)), vocab_(vocab) {
  const auto range = vocab_range(vocab, tp_);
  ParameterSpec weight{.name = "weight",
                       .init = init,
                       .use = WeightUse::kLookup,
                       .role = role,
                       .split_over_tp = tp_.size() > 1,
                       .is_embedding_or_head = true};
  weight.parts.push_back({weight.name, {vocab.size, hidden}, {range.begin, 0}, {range.end - range.begin, hidden}, 0});
  weight_ = &scope.add(std::move(weight), {vocab.padded / tp_.size(), hidden});
}

at::Tensor VocabParallelEmbedding::forward(const at::Tensor& ids) const {
  check_ids(ids, vocab_.size);
  const LowRank* update = active_update(*weight_, /*lookup=*/true);
  EmbeddingState state{weight_, tp_, vocab_range(vocab_, tp_), update};
  if (update == nullptr) return Embedding::apply(weight_->value, ids, std::nullopt, std::nullopt, state);
  state.factors = low_rank_factors(*update);
  return Embedding::apply(weight_->value, ids, update->a->value, update->b->value, state);
}

}  // namespace megalith::nn
