// All-to-all dispatch: each choice of a token becomes a row that travels to the rank of its expert and back.
//
//   x [t, h] ─ send_ ─► rows by (destination, expert) ─ all-to-all ─► by (sender, expert) ─ by_expert_ ─► by expert
//   combine: the same path backwards, then each token sums its rows times their weights.
//
// The host reads the loads of all members before the exchange, since it must size the buffers. It does so as late as
// possible: the copy of the rows to be sent is queued first, and runs while the host waits and starts the exchange.
// Backward reads nothing: sizes and maps are kept. With etp > 1 each row is sent to all etp ranks that hold a part of
// its expert, and the sum at the end adds their partial results.
//
// An exchange consists of two nodes of the graph, so that other work can run beside it, in both directions. Autograd
// runs nodes in the reverse of the order in which they were made:
//
//   forward    StartExchange: start ──► meanwhile: its nodes ──► FinishExchange: wait
//   backward   StartExchange: wait  ◄── theirs               ◄── FinishExchange: start
//
// Before a wait the pass hands over to the pass of another micro-batch, if one takes turns with it (nn/turns.h).
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/turns.h"
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

// An exchange and the operation of it that is in flight, in forward or in backward.
struct Flight {
  Exchange exchange;
  Turns* turns = Turns::current();
  comm::Work work{};
  at::Tensor arriving{};  // in backward: the gradients on their way

  // Waits for the operation and returns what has arrived in backward.
  at::Tensor land() {
    if (turns != nullptr) turns->hand_over();
    std::exchange(work, {}).wait();
    return std::exchange(arriving, {});
  }
};

// Starts to send rows to the ranks of their experts. The result must not be read before FinishExchange. Backward waits
// for the gradients of the rows.
struct StartExchange : Function<StartExchange> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const std::shared_ptr<Flight>& flight) {
    ops::save_state(ctx, flight);
    at::Tensor out = flight->exchange.empty_like(rows);
    flight->work = flight->exchange.start(out, rows.contiguous(), "tokens to experts and back");
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& /*grads*/) {
    return {ops::saved_state<std::shared_ptr<Flight>>(ctx)->land(), {}};
  }
};

// Waits for the rows. Backward starts to send their gradients back, and passes them on only because autograd wants a
// gradient of their size.
struct FinishExchange : Function<FinishExchange> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const std::shared_ptr<Flight>& flight) {
    ops::save_state(ctx, flight);
    flight->land();
    return rows.alias();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Flight& flight = *ops::saved_state<std::shared_ptr<Flight>>(ctx);
    const Exchange back = flight.exchange.reversed();
    flight.arriving = back.empty_like(grads[0]);
    flight.work = back.start(flight.arriving, grads[0].contiguous(), "gradients of tokens to experts and back");
    return {grads[0], {}};
  }
};

// Sends rows and calls `meanwhile` while they are in flight.
template <typename Meanwhile>
at::Tensor exchange_rows(const at::Tensor& rows, Exchange exchange, const Meanwhile& meanwhile) {
  const auto flight = std::make_shared<Flight>(std::move(exchange));
  const at::Tensor arriving = StartExchange::apply(rows, flight);
  meanwhile();
  return FinishExchange::apply(arriving, flight);
}

class AllToAllPlan : public DispatchPlan {
 public:
  AllToAllPlan(ExpertLists lists, const ExpertRanks& ranks, std::shared_ptr<const MemberLoads> loads)
      : lists_(std::move(lists)),
        ranks_(ranks),
        loads_(std::move(loads)),
        per_rank_(lists_.experts() / ranks.ep),
        travels_(ranks.group.size() > 1) {}

  at::Tensor dispatch(const at::Tensor& x, const std::function<void()>& meanwhile) override {
    const auto do_meanwhile = [&meanwhile] {
      if (meanwhile) meanwhile();
    };
    if (!travels_) {
      settle_alone();
      do_meanwhile();
      return ops::copy_rows(x, send_);
    }
    at::Tensor rows;
    if (!lists_.dropping) rows = send(x, lists_.map.rows());  // runs on the device while the host waits below
    settle_exchange();
    if (lists_.dropping) rows = send(x, rows_sent(group_rank(), 0, lists_.experts()));
    rows = exchange_rows(rows, exchange_, do_meanwhile);
    return by_expert_.token.defined() ? ops::copy_rows(rows, by_expert_) : rows;
  }

  // Only if every choice has a row on this rank, and no row is a filler.
  LocalRows local(const at::Tensor& x, const at::Tensor& weights) const override {
    if (travels_ || lists_.dropping || lists_.rows_per_expert) return {};
    const at::Tensor by_choice = weights.to(at::kFloat).flatten();
    const at::Tensor by_row = at::zeros({send_.rows()}, by_choice.options()).scatter(0, send_.row.flatten(), by_choice);
    return {[x = x.detach(), map = send_] {
              const at::NoGradGuard no_grad;
              return ops::copy_rows(x, map);
            },
            by_row};
  }

  at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights,
                     const std::function<at::Tensor()>& residual) const override {
    at::Tensor back = by_expert_.token.defined() ? ops::sum_rows(rows, {}, by_expert_) : rows, base;
    const auto make_base = [&] { base = residual(); };
    if (travels_)
      back = exchange_rows(back, exchange_.reversed(), make_base);
    else
      make_base();
    // All etp copies of a row carry its weight: the sum of their partial results is weighted once.
    const at::Tensor factors = copies() == 1 || !weights.defined()
                                   ? weights
                                   : weights.unsqueeze(2).expand({-1, -1, copies()}).reshape(send_.row.sizes());
    return ops::sum_rows(back, factors, send_, base);
  }

 private:
  int64_t copies() const { return ranks_.etp; }  // rows per choice
  int64_t members() const { return ranks_.group.size(); }
  int64_t group_rank() const { return ranks_.group.rank(); }
  int64_t first_of(int64_t member) const { return ranks_.ep_rank[static_cast<size_t>(member)] * per_rank_; }

  // Returns the rows of a member for experts [first, first + count). The first call may wait for the device.
  int64_t rows_sent(int64_t member, int64_t first, int64_t count) const {
    return loads_ ? loads_->rows(member, first, count) : *lists_.rows_per_expert * count;
  }

  // One rank: the rows are the lists. The host reads counts only if they decide how many rows there are.
  void settle_alone() {
    send_ = lists_.map;
    const int64_t experts = lists_.experts();
    const at::Tensor ends = lists_.first.narrow(0, 1, experts);
    if (lists_.rows_per_expert) {
      counts_ = std::vector<int64_t>(static_cast<size_t>(experts), *lists_.rows_per_expert);
    } else if (lists_.dropping) {
      const ops::HostTensor read(ends);
      const auto* end = read.value().const_data_ptr<int64_t>();
      std::vector<int64_t> counts(end, end + experts);
      send_.token = send_.token.narrow(0, 0, counts.back()).clone();
      std::adjacent_difference(counts.begin(), counts.end(), counts.begin());
      counts_ = ops::GroupCounts::on_both(std::move(counts), ends.to(at::kInt));
    } else {
      counts_ = ops::GroupCounts::on_device(ends.to(at::kInt));
    }
  }

  // Makes send_ for `rows` rows in the lists, and returns the rows to be sent.
  at::Tensor send(const at::Tensor& x, int64_t rows) {
    std::vector<int64_t> series;  // experts in the order of the members that hold them, once per part
    for (int64_t member = 0; member < members(); ++member)
      for (int64_t i = 0; i < per_rank_; ++i) series.push_back(first_of(member) + i);
    send_ = lists_.map;
    if (lists_.dropping) send_.token = send_.token.narrow(0, 0, rows).clone();
    if (copies() > 1 || !std::ranges::is_sorted(series)) send_ = by_destination(series, rows);
    return ops::copy_rows(x, send_);
  }

  // Lays out the lists in the order of `series`, in which every expert occurs copies() times.
  ops::RowMap by_destination(const std::vector<int64_t>& series, int64_t rows) const {
    const at::Device device = lists_.first.device();
    std::vector<int64_t> places(series.size());  // [E, copies]: where each copy of an expert stands in the series
    std::vector<int64_t> seen(static_cast<size_t>(lists_.experts()), 0);
    for (size_t i = 0; i < series.size(); ++i)
      places[static_cast<size_t>(series[i] * copies() + seen[static_cast<size_t>(series[i])]++)] =
          static_cast<int64_t>(i);
    const at::Tensor order = ops::to_device(at::tensor(series, at::kLong), device);
    const at::Tensor sizes = lists_.first.diff(), laid_out = sizes.index_select(0, order);
    const at::Tensor starts = laid_out.cumsum(0) - laid_out;
    const at::Tensor shift =
        starts.index_select(0, ops::to_device(at::tensor(places, at::kLong), device)).view({-1, copies()}) -
        lists_.first.narrow(0, 0, lists_.experts()).unsqueeze(1);
    const at::Tensor row = lists_.map.row.unsqueeze(2);
    const at::Tensor moved =
        shift.index_select(0, lists_.chosen.flatten()).view({lists_.tokens(), lists_.topk(), copies()});
    return {lists_.map.token.index_select(0, ops::rows_by_block(sizes, order, rows * copies())),
            (row + moved).masked_fill(row.lt(0), -1).view({lists_.tokens(), lists_.topk() * copies()}),
            lists_.map.every_row_used};
  }

  // Sizes the exchange; waits for the loads. Rows arrive ordered by sender, then expert; the experts need them ordered
  // by expert, then sender.
  void settle_exchange() {
    const int64_t own = first_of(group_rank()), senders = members();
    exchange_ = {ranks_.group, {}, {}};
    std::vector<int64_t> counts(static_cast<size_t>(per_rank_), 0);
    for (int64_t member = 0; member < senders; ++member) {
      exchange_.sent.push_back(rows_sent(group_rank(), first_of(member), per_rank_));
      exchange_.received.push_back(rows_sent(member, own, per_rank_));
      for (int64_t i = 0; i < per_rank_; ++i) counts[static_cast<size_t>(i)] += rows_sent(member, own + i, 1);
    }
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const auto number = lists_.first.options();
    const at::Tensor sizes = loads_ ? loads_->on_device().narrow(1, own, per_rank_).contiguous()
                                    : at::full({senders, per_rank_}, *lists_.rows_per_expert, number);
    counts_ = ops::GroupCounts::on_both(std::move(counts), sizes.sum(0).cumsum(0).to(at::kInt));
    if (per_rank_ == 1) return;
    const at::Tensor order = at::arange(sizes.numel(), number).view({senders, per_rank_}).t().reshape({-1});
    by_expert_ = ops::permutation_map(ops::rows_by_block(sizes.view(-1), order, rows));
  }

  const ExpertLists lists_;
  const ExpertRanks& ranks_;
  const std::shared_ptr<const MemberLoads> loads_;
  const int64_t per_rank_;  // experts
  const bool travels_;      // the group has several members
  // Set by dispatch().
  ops::RowMap send_;
  Exchange exchange_;
  ops::RowMap by_expert_;  // undefined if rows already arrive in this order
};

}  // namespace

std::unique_ptr<DispatchPlan> plan_all_to_all(const ExpertLists& lists, const ExpertRanks& ranks,
                                              std::shared_ptr<const MemberLoads> loads) {
  return std::make_unique<AllToAllPlan>(lists, ranks, std::move(loads));
}

}  // namespace megalith::nn
