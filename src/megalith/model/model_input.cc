// Shifts by one token inside a packed batch. [a b | c d e] with the sequences {a b} and {c d e} becomes [b X | d e X],
// where X is the value for the end of a sequence.
#include "megalith/model/model_input.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"

namespace megalith::model {

at::Tensor shift_labels(const at::Tensor& labels, const ops::SequenceLayout& layout) {
  return shift_tokens(labels, layout, -100);
}

at::Tensor shift_tokens(const at::Tensor& values, const ops::SequenceLayout& layout, int64_t at_end) {
  check(values.dim() == 1 && values.size(0) == layout.tokens(), "{} labels for {} tokens", values.numel(),
        layout.tokens());
  at::Tensor shifted = at::full_like(values, at_end);
  if (layout.tokens() > 1) shifted.narrow(0, 0, values.size(0) - 1).copy_(values.narrow(0, 1, values.size(0) - 1));
  // The last token of each sequence has received the first one of the next sequence: replace it.
  const at::Tensor ends = layout.cumulative_tensor(values.device());
  return shifted.index_fill_(0, ends.narrow(0, 1, layout.sequences()).to(at::kLong) - 1, at_end);
}

std::vector<TokensAhead> tokens_ahead(const at::Tensor& ids, const at::Tensor& targets,
                                      const ops::SequenceLayout& layout, int64_t layers) {
  std::vector<TokensAhead> ahead;
  TokensAhead last{ids, targets};
  for (int64_t layer = 0; layer < layers; ++layer) {
    last = {shift_tokens(last.ids, layout, 0), shift_labels(last.targets, layout)};
    ahead.push_back(last);
  }
  return ahead;
}

}  // namespace megalith::model
