// Chooses between the ways of context parallelism. Modes compose: the head all-to-all over `cp.heads` first (Ulysses),
// then a ring or an all-gather over `cp.tokens` among the ranks that now hold the same heads.
#include "megalith/nn/context_parallel/context_attention.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/nn/context_parallel/head_all_to_all_internal.h"
#include "megalith/nn/context_parallel/ring_or_gathered_attention_internal.h"
#include "megalith/nn/context_parallel/slice.h"

namespace megalith::nn {

namespace {

// Dropout is a setting of the user; the rest is up to the calling layer. Slices are zigzag: two chunks per sequence.
void check_call(const at::Tensor& q, const at::Tensor& k, const ops::SequenceLayout& slice,
                const ops::AttentionOptions& options, const ContextParallel& cp) {
  check<ConfigError>(options.dropout == 0,
                     "attention_dropout is {}, and context_parallel_size is {}: attention over several ranks has no "
                     "dropout. Set attention_dropout to 0 or context_parallel_size to 1",
                     options.dropout, cp.size());
  check(options.causal, "attention over context-parallel ranks is causal");
  check(q.size(0) == slice.tokens() && k.size(0) == slice.tokens(), "{} queries and {} keys for a slice of {} tokens",
        q.size(0), k.size(0), slice.tokens());
  for (const int64_t end : slice.cumulative())
    check(end % 2 == 0, "a sequence of a context-parallel slice has an odd number of tokens");
}

// Attention among the ranks that hold the same heads.
at::Tensor over_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ops::SequenceLayout& slice,
                       const ops::AttentionOptions& options, const ContextParallel& cp) {
  if (cp.token_ranks() == 1) return ops::attention(q, k, v, slice, slice, options);
  return cp.gather ? gathered_attention(q, k, v, slice, options, *cp.tokens)
                   : ring_attention(q, k, v, slice, options, *cp.tokens);
}

// [t, g, d] -> [t, times·g, d], each head repeated `times` times in a row.
at::Tensor repeat_heads(const at::Tensor& x, int64_t times) {
  if (times == 1) return x;
  const int64_t t = x.size(0), g = x.size(1), d = x.size(2);
  return x.unsqueeze(2).expand({t, g, times, d}).reshape({t, g * times, d});
}

// Groups the heads by the rank that will receive them, [t, n, d] -> [t, ranks, n/ranks · d], and splits them again.
class HeadColumns {
 public:
  HeadColumns(const at::Tensor& x, int ranks) : ranks_(ranks), heads_(x.size(1) / ranks), size_(x.size(2)) {}
  int64_t count() const { return heads_ * size_; }
  at::Tensor join(const at::Tensor& x) const { return x.reshape({x.size(0), ranks_, count()}); }
  at::Tensor split(const at::Tensor& columns) const { return columns.unflatten(-1, {heads_, size_}); }

 private:
  int64_t ranks_, heads_, size_;
};

// Ulysses: each rank receives all tokens of the group for some of the heads. One all-to-all carries q, k and v. If
// there are fewer key/value heads than ranks, each is repeated for the ranks that need it.
at::Tensor over_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ops::SequenceLayout& slice,
                      const ops::AttentionOptions& options, const ContextParallel& cp) {
  const int ranks = cp.head_ranks();
  cp.check_heads(q.size(1), k.size(1));
  const int64_t times = std::max<int64_t>(1, ranks / k.size(1));
  const at::Tensor keys = repeat_heads(k, times), values = repeat_heads(v, times);
  const HeadColumns qs(q, ranks), ks(keys, ranks), vs(values, ranks);
  const at::Tensor columns = at::cat({qs.join(q), ks.join(keys), vs.join(values)}, 2).flatten(1);
  const at::Tensor traded = to_heads(columns, slice, *cp.heads);  // [r t, (n + g)/r d + g/r e]
  const auto own = [&traded](const HeadColumns& heads, int64_t first) {
    return heads.split(traded.narrow(1, first, heads.count()));
  };
  const at::Tensor out = over_tokens(own(qs, 0), own(ks, qs.count()), own(vs, qs.count() + ks.count()),
                                     join_slices(slice, ranks), options, cp);
  return to_tokens(out.flatten(1), slice, *cp.heads).view({q.size(0), q.size(1), v.size(2)});
}

}  // namespace

at::Tensor context_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const ops::SequenceLayout& slice, const ops::AttentionOptions& options,
                             const ContextParallel& cp) {
  if (cp.size() == 1) return ops::attention(q, k, v, slice, slice, options);
  check_call(q, k, slice, options, cp);
  return cp.head_ranks() > 1 ? over_heads(q, k, v, slice, options, cp) : over_tokens(q, k, v, slice, options, cp);
}

}  // namespace megalith::nn
