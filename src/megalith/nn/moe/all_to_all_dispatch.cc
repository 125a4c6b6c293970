// All-to-all dispatch: each choice of a token becomes a row that travels to the rank of its expert and back.
//
//   x [t, h] ─ send_ ─► rows by (destination, expert) ─ all-to-all ─► by (sender, expert) ─ by_expert_ ─► by expert
//   combine: the same path backwards, then each token sums its rows times their weights.
//
// The ranks first exchange how many rows they send per expert; on CUDA the host waits for these counts, since it must
// size the buffers. With etp > 1 each row is sent to all etp ranks that hold a part of its expert, and the sum at the
// end adds their partial results. If one rank holds all experts and nothing is dropped, nothing is exchanged, and the
// counts stay on the device (local_).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

// One direction of the row exchange.
struct Exchange {
  comm::Group group;
  std::vector<int64_t> sent, received;  // rows to and from each member

  Exchange reversed() const { return {group, received, sent}; }
  comm::Work start(const at::Tensor& out, const at::Tensor& in, const char* label) const {
    return group.all_to_all_async(out, in, received, sent, label);
  }
  at::Tensor empty_like(const at::Tensor& in) const {
    return at::empty({std::accumulate(received.begin(), received.end(), int64_t{0}), in.size(1)}, in.options());
  }
};

// Sends rows to the ranks of their experts; backward sends their gradients back.
struct ExchangeRows : Function<ExchangeRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const Exchange& exchange,
                            const std::function<void()>& meanwhile) {
    ops::save_state(ctx, exchange);
    at::Tensor out = exchange.empty_like(rows);
    comm::Work travelling = exchange.start(out, rows.contiguous(), "tokens to experts and back");
    if (meanwhile) meanwhile();
    travelling.wait();
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Exchange back = ops::saved_state<Exchange>(ctx).reversed();
    at::Tensor out = back.empty_like(grads[0]);
    back.start(out, grads[0].contiguous(), "gradients of tokens to experts and back").wait();
    return {out, {}, {}};
  }
};

// Everything about one micro-batch is decided in the constructor: the maps of rows and the sizes of both exchanges.
class AllToAllPlan : public DispatchPlan {
 public:
  AllToAllPlan(const ExpertLists& lists, const ExpertRanks& ranks, at::Device device)
      : copies_(ranks.etp), device_(device), local_(lists.on_device.has_value()) {
    if (local_) {
      send_ = lists.on_device->map;
      counts_ = ops::GroupCounts::on_device(lists.on_device->first.narrow(0, 1, lists.experts()).to(at::kInt));
      return;
    }
    const int64_t per_rank = lists.experts() / ranks.ep;
    // Experts in the order of the members that hold them; with etp > 1 each occurs once per part.
    std::vector<int64_t> series;
    for (const int ep_rank : ranks.ep_rank)
      for (int64_t i = 0; i < per_rank; ++i) series.push_back(ep_rank * per_rank + i);
    send_ = rows_of(lists, series, copies_).to(device);
    const auto members = static_cast<int64_t>(ranks.ep_rank.size());
    at::Tensor sent = at::empty({members, per_rank}, at::kLong);
    for (size_t i = 0; i < series.size(); ++i) sent.mutable_data_ptr<int64_t>()[i] = lists.count(series[i]);
    if (members == 1) {
      counts_ = std::vector<int64_t>(sent.const_data_ptr<int64_t>(), sent.const_data_ptr<int64_t>() + per_rank);
      return;
    }
    at::Tensor received = at::empty_like(sent);
    exchange_counts(received, sent, ranks.group);
    exchange_ = {ranks.group, row_sums(sent), row_sums(received)};
    regroup(received);
  }

  at::Tensor dispatch(const at::Tensor& x, const std::function<void()>& meanwhile) const override {
    at::Tensor rows = ops::copy_rows(x, send_);
    if (exchange_.sent.empty()) {
      if (meanwhile) meanwhile();
      return rows;
    }
    // The forward of an autograd function runs without gradients; `meanwhile` needs the caller's mode.
    const auto recorded = [&meanwhile, on = at::GradMode::is_enabled()] {
      const at::AutoGradMode mode(on);
      meanwhile();
    };
    rows = ExchangeRows::apply(rows, exchange_, meanwhile ? std::function<void()>(recorded) : meanwhile);
    return by_expert_.token.defined() ? ops::copy_rows(rows, by_expert_) : rows;
  }

  // Only if the lists are on a GPU: there memory is scarce, and copying the rows again in backward is cheap.
  LocalRows local(const at::Tensor& x, const at::Tensor& weights) const override {
    if (!local_) return {};
    const at::Tensor by_choice = weights.to(at::kFloat).flatten();
    const at::Tensor by_row = at::zeros({send_.rows()}, by_choice.options()).scatter(0, send_.row.flatten(), by_choice);
    return {[x = x.detach(), map = send_] {
              const at::NoGradGuard no_grad;
              return ops::copy_rows(x, map);
            },
            by_row};
  }

  at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& residual) const override {
    at::Tensor back = by_expert_.token.defined() ? ops::sum_rows(rows, {}, by_expert_) : rows;
    if (!exchange_.sent.empty()) back = ExchangeRows::apply(back, exchange_.reversed(), std::function<void()>());
    // All etp copies of a row carry its weight: the sum of their partial results is weighted once.
    const at::Tensor factors = copies_ == 1 || !weights.defined()
                                   ? weights
                                   : weights.unsqueeze(2).expand({-1, -1, copies_}).reshape(send_.row.sizes());
    return ops::sum_rows(back, factors, send_, residual);
  }

 private:
  static std::vector<int64_t> row_sums(const at::Tensor& counts) {
    const at::Tensor sums = counts.sum(1);
    return {sums.const_data_ptr<int64_t>(), sums.const_data_ptr<int64_t>() + sums.numel()};
  }

  // Exchanges the counts on the device of the tokens, because the group's transport may require that.
  void exchange_counts(at::Tensor& received, const at::Tensor& sent, const comm::Group& group) const {
    const at::Tensor out = received.to(device_), in = sent.to(device_);
    group.all_to_all(out, in, {}, {}, "tokens of each expert");
    received = out.cpu();
  }

  // Rows arrive ordered by sender, then expert; the experts need them ordered by expert, then sender.
  void regroup(const at::Tensor& received) {
    const int64_t senders = received.size(0), experts = received.size(1);
    const auto* count = received.const_data_ptr<int64_t>();
    std::vector<int64_t> first{0};  // row where block (sender, expert) starts
    for (int64_t i = 0; i < received.numel(); ++i) first.push_back(first.back() + count[i]);
    std::vector<int64_t> order, rows_of_expert;
    order.reserve(static_cast<size_t>(first.back()));
    for (int64_t expert = 0; expert < experts; ++expert) {
      const auto before = static_cast<int64_t>(order.size());
      for (int64_t sender = 0; sender < senders; ++sender) {
        const auto block = static_cast<size_t>(sender * experts + expert);
        for (int64_t row = first[block]; row < first[block + 1]; ++row) order.push_back(row);
      }
      rows_of_expert.push_back(static_cast<int64_t>(order.size()) - before);
    }
    counts_ = std::move(rows_of_expert);
    if (experts > 1) by_expert_ = ops::permutation_map(at::tensor(order, at::kLong)).to(device_);
  }

  int64_t copies_;     // rows per choice: etp
  at::Device device_;  // the device of the tokens
  bool local_;         // every choice has a row, and all rows stay on this rank
  ops::RowMap send_;
  Exchange exchange_;      // empty for a group of one rank
  ops::RowMap by_expert_;  // undefined if rows already arrive in this order
};

}  // namespace

ExpertRanks ExpertRanks::of(const parallel::ParallelContext& context) {
  ExpertRanks ranks{.group = context.group(layout::GroupKind::kTpEp), .ep_rank = {}};
  ranks.ep = context.grid().shape().ep;
  ranks.etp = context.grid().etp();
  for (const int rank : ranks.group.ranks()) ranks.ep_rank.push_back(context.grid().place(rank).ep_rank);
  return ranks;
}

std::unique_ptr<DispatchPlan> plan_all_to_all(const ExpertLists& lists, const ExpertRanks& ranks, at::Device device) {
  return std::make_unique<AllToAllPlan>(lists, ranks, device);
}

}  // namespace megalith::nn
