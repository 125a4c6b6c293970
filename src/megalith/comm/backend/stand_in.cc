// Stand-ins on the CPU, and what is common to all devices: results and the way from an operation to a queue.
//
// Time on the CPU. A queue runs one call after the other. With `free` the end of the call before it, `sent` the time at
// which the other side of a receive sends:
//
//   start: now ─┬─ move the data (exposed: the host does it)        begin = max(now, free, sent),  end = begin + lasts
//               ▼
//   wait:  now … min(end, sent) waited for peers … end exposed; nothing if the end is already over
#include "megalith/comm/backend/stand_in.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "megalith/base/error.h"

namespace megalith::comm {

namespace {

// The largest value of received activations and gradients: small enough to stay finite in every number format.
constexpr double kNoise = 0.02;

void write_noise(const at::Tensor& tensor, const at::Generator& generator) {
  if (tensor.numel() == 0) return;
  const bool drawable = at::isFloatingType(tensor.scalar_type()) && !at::isFloat8Type(tensor.scalar_type());
  if (!drawable) {
    tensor.zero_();
    return;
  }
  if (tensor.is_cpu())
    tensor.uniform_(-kNoise, kNoise, generator);
  else
    tensor.uniform_(-kNoise, kNoise);
}

// Reduces equal tensors of all members.
void write_reduced(const at::Tensor& output, const at::Tensor& own, ReduceOp reduce, int64_t members) {
  const bool in_place = output.data_ptr() == own.data_ptr();
  if (reduce == ReduceOp::kSum)
    at::mul_out(const_cast<at::Tensor&>(output), own, at::scalar_to_tensor(members));
  else if (!in_place)
    output.copy_(own);
}

// Copies `own` into every one of the equal blocks of `output`, one kernel per side: `own` may be one of the blocks.
void write_repeated(const at::Tensor& output, const at::Tensor& own, int64_t members, int64_t rank) {
  const int64_t block = own.numel();
  if (block == 0) return;
  const at::Tensor blocks = output.view({members, block}), row = own.view({1, block});
  const auto fill = [&](int64_t from, int64_t count) {
    if (count > 0) blocks.narrow(0, from, count).copy_(row.expand({count, block}));
  };
  fill(0, rank);
  if (blocks.select(0, rank).data_ptr() != own.data_ptr()) fill(rank, 1);
  fill(rank + 1, members - rank - 1);
}

// Returns the rows of member `of`'s block and the row at which it begins.
std::pair<int64_t, int64_t> rows_of(const std::vector<int64_t>& splits, const at::Tensor& tensor, int64_t members,
                                    int64_t of) {
  if (splits.empty()) return {tensor.size(0) / members, of * (tensor.size(0) / members)};
  int64_t begin = 0;
  for (int64_t member = 0; member < of; ++member) begin += splits[static_cast<size_t>(member)];
  return {splits[static_cast<size_t>(of)], begin};
}

// From each member comes the block that this rank keeps. Members that send more rows than that repeat its first ones:
// their splits come from counts that were exchanged before, which this makes equal to the rank's own.
void write_exchanged(const Op& op, int64_t members, int64_t rank) {
  const auto [kept, kept_at] = rows_of(op.input_splits, op.input, members, rank);
  const at::Tensor own = op.input.narrow(0, kept_at, kept);
  const int64_t rows = op.output.size(0);
  if (rows == kept * members) return write_repeated(op.output, own, members, rank);
  op.output.zero_();
  for (int64_t from = 0; from < members && kept > 0; ++from) {
    const auto [wanted, at] = rows_of(op.output_splits, op.output, members, from);
    const int64_t taken = std::min(wanted, kept);
    if (taken > 0) op.output.narrow(0, at, taken).copy_(own.narrow(0, 0, taken));
  }
}

void write_result(const Op& op, const StandInCall& call) {
  const int64_t members = std::ssize(call.group.ranks), rank = call.group.rank;
  switch (op.kind) {
    case OpKind::kAllReduce:
      return write_reduced(op.output, op.output, op.reduce, members);
    case OpKind::kAllGather:
      return write_repeated(op.output, op.input, members, rank);
    case OpKind::kReduceScatter: {
      const int64_t block = op.output.numel();
      return write_reduced(op.output.view(-1), op.input.view(-1).narrow(0, rank * block, block), op.reduce, members);
    }
    case OpKind::kAllToAll:
      return write_exchanged(op, members, rank);
    case OpKind::kRecv:
      return write_noise(op.output, call.noise);
    case OpKind::kBroadcast:
    case OpKind::kBarrier:
    case OpKind::kSend:
      return;
  }
}

// Sleeps most of the time and spins at the end: the shortest operations last microseconds, a sleep 60 more.
class SteadyClock : public StandInClock {
 public:
  double now() override { return std::chrono::duration<double>(Clock::now() - origin_).count(); }
  void wait_until(double time) override {
    constexpr double kSpin = 100e-6;
    if (const double left = time - now(); left > 2 * kSpin)
      std::this_thread::sleep_for(std::chrono::duration<double>(left - kSpin));
    while (now() < time) std::this_thread::yield();
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point origin_ = Clock::now();
};

// The clock and the account. Shared with queues and handles, which may outlive the device.
struct HostAccount {
  std::unique_ptr<StandInClock> clock;
  std::mutex mutex;
  double step_began = 0;                      // guarded by mutex
  std::map<std::string, StandInWaits> waits;  // guarded by mutex
  void add(const std::string& group, const StandInWaits& more) {
    std::lock_guard lock(mutex);
    StandInWaits& sum = waits[group];
    sum.exposed += more.exposed;
    sum.for_peers += more.for_peers;
  }
};

class HostPending : public PendingOp {
 public:
  HostPending(std::shared_ptr<HostAccount> account, const StandInCall& call, double sent, double end)
      : account_(std::move(account)), group_(call.group.name), ops_(call.ops), sent_(sent), end_(end) {}

  bool wait_for(std::chrono::milliseconds limit) override {
    StandInClock& clock = *account_->clock;
    const double now = clock.now(), until = std::min(end_, now + std::chrono::duration<double>(limit).count());
    if (until > now) {
      const double for_peers = std::max(0.0, std::min(until, sent_) - now);
      account_->add(group_, {.exposed = until - now - for_peers, .for_peers = for_peers});
      clock.wait_until(until);
    }
    if (until < end_) return false;
    ops_.clear();
    return true;
  }
  bool done() override { return account_->clock->now() >= end_; }
  void abort(const std::string&) override {}  // it ends by itself

 private:
  const std::shared_ptr<HostAccount> account_;
  const std::string group_;
  std::vector<Op> ops_;  // keeps their tensors alive
  const double sent_, end_;
};

class HostQueue : public StandInQueue {
 public:
  explicit HostQueue(std::shared_ptr<HostAccount> account) : account_(std::move(account)) {}

  std::shared_ptr<PendingOp> run(const StandInCall& call) override {
    StandInClock& clock = *account_->clock;
    const double start = clock.now();
    write_results(call);
    const double moved = clock.now();
    account_->add(call.group.name, {.exposed = moved - start});
    std::unique_lock lock(account_->mutex);
    const double sent = account_->step_began + call.sent;
    free_ = std::max(std::max({start, free_, sent}) + call.lasts, moved);
    const double end = free_;
    lock.unlock();
    return std::make_shared<HostPending>(account_, call, sent, end);
  }

 private:
  const std::shared_ptr<HostAccount> account_;
  double free_ = 0;  // end of the last call; guarded by the account's mutex
};

class HostStandIns : public StandInDevice {
 public:
  explicit HostStandIns(std::unique_ptr<StandInClock> clock) { account_->clock = std::move(clock); }

  void begin_step() override {
    std::lock_guard lock(account_->mutex);
    account_->step_began = account_->clock->now();
  }
  std::unique_ptr<StandInQueue> open_queue() override { return std::make_unique<HostQueue>(account_); }
  std::map<std::string, StandInWaits> take_waits() override {
    std::lock_guard lock(account_->mutex);
    return std::exchange(account_->waits, {});
  }

 private:
  const std::shared_ptr<HostAccount> account_ = std::make_shared<HostAccount>();
};

// One group of the rehearsed rank.
class StandInBackend : public Backend {
 public:
  StandInBackend(StandInTimes times, std::shared_ptr<StandInDevice> device, GroupInfo group)
      : times_(std::move(times)), device_(std::move(device)), queue_(device_->open_queue()), group_(std::move(group)) {}

  std::shared_ptr<PendingOp> start(const Op& op) override { return start_batch({op}).front(); }

  // A batch is one operation: its messages travel at the same time, in both directions.
  std::vector<std::shared_ptr<PendingOp>> start_batch(const std::vector<Op>& ops) override {
    StandInCall call{.group = group_, .ops = ops, .noise = noise_};
    for (const Op& op : ops) {
      call.lasts = std::max(call.lasts, times_.lasts(group_, op));
      if (op.kind == OpKind::kRecv && times_.sent) call.sent = std::max(call.sent, times_.sent(group_, op));
    }
    return std::vector<std::shared_ptr<PendingOp>>(ops.size(), queue_->run(call));
  }

  std::optional<c10::Stream> stream() const override { return queue_->stream(); }

 private:
  const StandInTimes times_;
  const std::shared_ptr<StandInDevice> device_;
  const std::unique_ptr<StandInQueue> queue_;
  const GroupInfo group_;
  const at::Generator noise_ = at::detail::createCPUGenerator();  // its own: the run's masks stay as they are
};

}  // namespace

void write_results(const StandInCall& call) {
  const at::NoGradGuard no_grad;
  for (const Op& op : call.ops) write_result(op, call);
}

std::unique_ptr<StandInDevice> make_host_stand_ins(std::unique_ptr<StandInClock> clock) {
  return std::make_unique<HostStandIns>(std::move(clock));
}

StandIns::StandIns(StandInTimes times, std::unique_ptr<StandInDevice> device)
    : times_(std::move(times)), device_(std::move(device)) {
  check(times_.lasts != nullptr, "stand-ins need to know how long operations last");
}

std::unique_ptr<Backend> StandIns::connect(const GroupInfo& group) const {
  return std::make_unique<StandInBackend>(times_, device_, group);
}

std::shared_ptr<StandIns> make_stand_ins(StandInTimes times, c10::Device device) {
  return std::make_shared<StandIns>(std::move(times), device.is_cuda()
                                                          ? make_cuda_stand_ins(device)
                                                          : make_host_stand_ins(std::make_unique<SteadyClock>()));
}

}  // namespace megalith::comm
