// The default way to apply a rule written with tensor operations. Such a rule makes temporaries of the size of its
// input, so the block is cut into pieces: memory stays bounded, at the price of some launches.
#include "megalith/optim/rules/update_rule.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::optim {

namespace {

// Elements per call of a rule that is not fused: 16 MB for each of its temporaries.
constexpr int64_t kPlainPieceElements = int64_t{1} << 22;

}  // namespace

// The gate is one small tensor for the whole step, so every slice shares it.
FlatElements FlatElements::slice(int64_t begin, int64_t end) const {
  const auto cut = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, begin, end - begin) : at::Tensor(); };
  FlatElements part{
      .main = cut(main), .grad = cut(grad), .param = cut(param), .gate = gate, .multiprocessors = multiprocessors};
  for (const at::Tensor& state : states) part.states.push_back(cut(state));
  return part;
}

StoredElements StoredElements::slice(int64_t begin, int64_t end) const {
  const auto cut = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, begin, end - begin) : at::Tensor(); };
  StoredElements part{.main = main.slice(begin, end),
                      .grad = cut(grad),
                      .param = cut(param),
                      .gate = gate,
                      .multiprocessors = multiprocessors};
  for (const ops::StoredValues& state : states) part.states.push_back(state.slice(begin, end));
  return part;
}

void UpdateRule::update_runs(const FlatElements& block, std::span<const ops::UpdateRun> runs) const {
  if (is_fused()) {
    for (const ops::UpdateRun& run : runs) update(block.slice(run.begin, run.end), run.scalars);
    return;
  }
  check(!block.gate.defined(), "the update rule {} is not fused and got a gate", name());
  for (const ops::UpdateRun& run : runs)
    for (int64_t begin = run.begin; begin < run.end; begin += kPlainPieceElements) {
      FlatElements piece = block.slice(begin, std::min(run.end, begin + kPlainPieceElements));
      const at::Tensor param = std::exchange(piece.param, at::Tensor());  // written below instead of by the rule
      piece.grad = piece.grad.to(at::kFloat).mul(run.scalars.grad_scale);
      update(piece, run.scalars);
      if (param.defined()) param.copy_(piece.main);
    }
}

bool UpdateRule::update_stored_runs(const StoredElements& /*block*/, std::span<const ops::UpdateRun> /*runs*/) const {
  return false;
}

void require_setting(std::vector<std::string>& problems, bool good, const char* name, double value,
                     const char* allowed) {
  if (!good) problems.push_back(fmt::format("{} is {}; it must be {}", name, value, allowed));
}

}  // namespace megalith::optim
