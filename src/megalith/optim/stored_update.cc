#include "megalith/optim/stored_update.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace megalith::optim {

namespace {

// Elements per piece. With AdamW a piece has 12 bytes of scratch per element: 12 MB on a device, which stay in the L2
// cache of a large GPU, and 0.75 MB on the host.
int64_t piece_elements(const at::Device& device) { return device.is_cpu() ? int64_t{1} << 16 : int64_t{1} << 20; }

bool all_fp32(const StoredElements& x) {
  return x.main.is_fp32() && std::ranges::all_of(x.states, &ops::StoredValues::is_fp32);
}

// fp32 memory for the stored tensors of a piece; those that are fp32 already are used in place.
class Scratch {
 public:
  Scratch(int64_t elements, at::TensorOptions options) : elements_(elements), options_(options.dtype(at::kFloat)) {}

  // Returns the numbers of `stored`, widened into tensor `number` of the scratch memory.
  at::Tensor widen(const ops::StoredValues& stored, size_t number) {
    if (stored.is_fp32()) return stored.values;
    if (tensors_.size() <= number) tensors_.resize(number + 1);
    if (!tensors_[number].defined()) tensors_[number] = at::empty({elements_}, options_);
    const at::Tensor numbers = tensors_[number].narrow(0, 0, stored.numel());
    ops::read_values(stored, numbers);
    return numbers;
  }

 private:
  int64_t elements_;
  at::TensorOptions options_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace

std::vector<ops::UpdateRun> runs_within(std::span<const ops::UpdateRun> runs, int64_t begin, int64_t end) {
  std::vector<ops::UpdateRun> result;
  for (const ops::UpdateRun& run : runs) {
    const int64_t from = std::max(run.begin, begin), to = std::min(run.end, end);
    if (from < to) result.push_back({from - begin, to - begin, run.scalars});
  }
  return result;
}

void update_stored(const UpdateRule& rule, const StoredElements& x, std::span<const ops::UpdateRun> runs) {
  if (all_fp32(x)) {
    FlatElements flat{
        .main = x.main.values, .grad = x.grad, .param = x.param, .gate = x.gate, .multiprocessors = x.multiprocessors};
    for (const ops::StoredValues& state : x.states) flat.states.push_back(state.values);
    return rule.update_runs(flat, runs);
  }
  if (rule.update_stored_runs(x, runs)) return;
  const int64_t n = x.main.numel(), most = std::min(n, piece_elements(x.main.values.device()));
  Scratch scratch(most, x.main.values.options());
  for (int64_t begin = 0; begin < n; begin += most) {
    const int64_t end = std::min(n, begin + most);
    const std::vector<ops::UpdateRun> own_runs = runs_within(runs, begin, end);
    if (own_runs.empty()) continue;
    const auto cut = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, begin, end - begin) : t; };
    const ops::StoredValues main = x.main.slice(begin, end);
    FlatElements piece{
        .main = scratch.widen(main, 0), .grad = cut(x.grad), .gate = x.gate, .multiprocessors = x.multiprocessors};
    std::vector<ops::StoredValues> states;
    for (const ops::StoredValues& state : x.states) {
      states.push_back(state.slice(begin, end));
      piece.states.push_back(scratch.widen(states.back(), states.size()));
    }
    if (main.is_fp32()) piece.param = cut(x.param);
    rule.update_runs(piece, own_runs);
    for (size_t i = 0; i < states.size(); ++i)
      if (!states[i].is_fp32()) ops::write_values(piece.states[i], states[i]);
    if (main.is_fp32()) continue;
    ops::write_values(piece.main, main);
    if (!x.param.defined()) continue;
    ops::read_values(main, piece.main);
    cut(x.param).copy_(piece.main);
  }
}

}  // namespace megalith::optim
