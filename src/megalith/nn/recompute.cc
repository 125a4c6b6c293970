// Two ways to trade compute for memory.
//
// recompute() is an autograd function: forward runs `fn` without gradients and saves only its inputs; backward runs it
// again with gradients on detached inputs and starts a nested backward pass from the result. Random streams are reset
// to their state before the first run, and restored after the second, so that code outside sees no difference.
//
// discard_until_backward() keeps the graph but takes the memory of one saved tensor: its storage loses its data, and a
// hook on the consumer's output, which runs just before the consumer's backward, fills the same storage again. Saved
// variables hold the storage and so never notice.
#include "megalith/nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/nn/turns.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

thread_local RegionNotes* running_region = nullptr;

// Makes `notes` those of the running region for its lifetime.
class RunningRegion {
 public:
  explicit RunningRegion(RegionNotes& notes) : before_(std::exchange(running_region, &notes)) {}
  ~RunningRegion() { running_region = before_; }
  RunningRegion(const RunningRegion&) = delete;
  RunningRegion& operator=(const RunningRegion&) = delete;

 private:
  RegionNotes* const before_;
};

struct RecomputeState {
  std::function<at::Tensor(const TensorList&)> fn;
  parallel::RngTracker* rng;
  std::string rng_before;
  comm::Group split_over;           // valid if any input is split
  std::vector<bool> split;          // per input: only this rank's share is kept
  std::vector<bool> requires_grad;  // per input
  RegionNotes notes{};
  Turns* turns = nullptr;  // the first run's turns; the second run hands over, too
};

// Sets the random streams to `state` for its lifetime, then back to what they were. A pass that takes its turn
// meanwhile draws from the streams as they were, and continues them.
class RngReplay {
 public:
  RngReplay(parallel::RngTracker* rng, const std::string& state) : rng_(rng) {
    if (!rng_) return;
    after_ = rng_->save();
    rng_->restore(state);
    aside_.emplace([this] { replayed_ = switch_to(after_); }, [this] { after_ = switch_to(replayed_); });
  }
  ~RngReplay() {
    if (rng_) rng_->restore(after_);
  }
  RngReplay(const RngReplay&) = delete;
  RngReplay& operator=(const RngReplay&) = delete;

 private:
  // Returns the state before.
  std::string switch_to(const std::string& state) {
    std::string before = rng_->save();
    rng_->restore(state);
    return before;
  }

  parallel::RngTracker* rng_;
  std::string after_;     // the streams outside of the replay
  std::string replayed_;  // those of the replay, while another pass has its turn
  std::optional<Turns::Aside> aside_;
};

// A copy, not a view: a view would keep the whole input alive.
at::Tensor own_share(const at::Tensor& whole, const comm::Group& group) {
  const int64_t rows = whole.size(0) / group.size();
  return whole.detach().narrow(0, rows * group.rank(), rows).clone();
}

// Takes up to four inputs, because autograd functions need variables as separate arguments; no caller has more.
// `anchor` does not affect the result. If no input requires a gradient, the anchor does, so that autograd still calls
// backward, for the sake of the parameters used in fn.
struct Recompute : Function<Recompute> {
  using More = std::optional<at::Tensor>;
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const More& b, const More& c, const More& d,
                            const More& /*anchor*/, RecomputeState state) {
    TensorList inputs{a};
    for (const More* more : {&b, &c, &d})
      if (*more) inputs.push_back(**more);
    const size_t count = inputs.size();
    for (const at::Tensor& input : inputs) state.requires_grad.push_back(input.requires_grad());
    if (state.rng) state.rng_before = state.rng->save();
    state.turns = Turns::current();
    at::Tensor out;
    {
      const at::NoGradGuard no_grad;
      const RunningRegion region(state.notes);
      out = state.fn(inputs);
    }
    for (size_t i = 0; i < count; ++i)
      if (state.split[i]) inputs[i] = own_share(inputs[i], state.split_over);
    ctx->save_for_backward(inputs);
    ops::save_state(ctx, std::move(state));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& state = ops::saved_state<RecomputeState>(ctx);
    TensorList inputs = ctx->get_saved_variables();
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = inputs[i].detach();
      if (state.split[i]) inputs[i] = all_gather_rows(inputs[i], state.split_over, "recompute input");
      inputs[i].requires_grad_(state.requires_grad[i]);
    }
    at::Tensor out;
    {
      const RngReplay replay(state.rng, state.rng_before);
      const at::AutoGradMode with_grad(true);
      const Turns::Scope turns(state.turns);
      state.notes.begin_second_run();
      const RunningRegion region(state.notes);
      out = state.fn(inputs);
    }
    // A nested pass, at once: gradients of parameters go where hooks and main_grad send them, those of inputs come back
    // here.
    variable_list result(6);
    if (!out.requires_grad()) return result;  // all parameters in fn are frozen
    torch::autograd::backward({out}, {grads[0]});
    for (size_t i = 0; i < inputs.size(); ++i) result[i] = inputs[i].grad();
    return result;
  }
};

}  // namespace

RegionNotes* RegionNotes::current() { return running_region; }

at::Tensor recompute(std::function<at::Tensor(const TensorList&)> fn, const TensorList& inputs,
                     parallel::RngTracker* rng, KeepInputs keep) {
  check(!inputs.empty() && inputs.size() <= 4, "recompute takes one to four inputs, not {}", inputs.size());
  if (!at::GradMode::is_enabled()) return fn(inputs);
  RecomputeState state{
      .fn = std::move(fn), .rng = rng, .rng_before = {}, .split_over = {}, .split = {}, .requires_grad = {}};
  if (keep.split_over) state.split_over = *keep.split_over;
  for (const at::Tensor& input : inputs)
    state.split.push_back(keep.split_over && keep.split_over->size() > 1 &&
                          input.size(0) % keep.split_over->size() == 0);
  const auto more = [&inputs](size_t i) { return i < inputs.size() ? Recompute::More(inputs[i]) : std::nullopt; };
  Recompute::More anchor;
  if (std::ranges::none_of(inputs, [](const at::Tensor& input) { return input.requires_grad(); }))
    anchor = at::empty({0}, at::kFloat).requires_grad_();
  return Recompute::apply(inputs[0], more(1), more(2), more(3), anchor, std::move(state));
}

void discard_until_backward(const at::Tensor& value, std::function<at::Tensor()> make, const at::Tensor& consumer_out) {
  if (!consumer_out.requires_grad()) return;
  const c10::Storage storage = value.storage();
  check(value.is_contiguous() && storage.nbytes() == value.nbytes(),
        "only a contiguous tensor with a storage of its own can be discarded until backward");
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, value.device()));
  // The graph keeps the hook to its end. Once the value is back, the hook drops its reference, so that only the readers
  // keep the memory alive.
  struct Discarded {
    c10::Storage storage;
    std::function<at::Tensor()> make;
  };
  consumer_out.register_hook(
      [held = std::make_shared<Discarded>(Discarded{storage, std::move(make)})](const at::Tensor&) {
        const Discarded taken = std::exchange(*held, {});
        if (!taken.storage) return;
        const at::NoGradGuard no_grad;
        at::Tensor remade = taken.make().contiguous();
        taken.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
            remade.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, remade.device())));
      });
}

}  // namespace megalith::nn
