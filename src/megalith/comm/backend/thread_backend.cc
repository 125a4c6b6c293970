// Ranks as threads. A Meeting is the shared state of one group: a map from operation to the members that have joined
// it.
//
//   member 0   join("#7")  ----.
//   member 1   join("#7")  ------.        collectives are keyed by their number, transfers by "from>to#number"
//   member 2   join("#7")  runs the operation for all, in rank order, then wakes the others
//
// The work is done outside the lock: once all have joined, the entry is removed from the map and only the last member
// touches the tensors until `finished` is set. Results are those of one thread, so they do not depend on timing.
#include "megalith/comm/backend/thread_backend.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <optional>

#include "megalith/base/error.h"

namespace megalith::comm {

// The state that the members of one operation share. All fields are guarded by the Meeting's mutex.
struct MeetingOp {
  std::vector<std::optional<Op>> ops;  // by group rank; a transfer has two entries: sender, receiver
  bool finished = false;
  std::string error;  // empty unless it failed
};

namespace {

// Returns the sum (max, …) of the tensors, added in rank order.
at::Tensor reduce_blocks(const std::vector<at::Tensor>& blocks, ReduceOp op) {
  at::Tensor result = blocks[0].clone();
  for (size_t i = 1; i < blocks.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result.add_(blocks[i]);
        break;
      case ReduceOp::kMax:
        at::maximum_out(result, result, blocks[i]);
        break;
      case ReduceOp::kMin:
        at::minimum_out(result, result, blocks[i]);
        break;
    }
  }
  if (op == ReduceOp::kAvg) result.div_(static_cast<double>(blocks.size()));
  return result;
}

// The result is computed once and copied, so that all members have the same bits.
void run_all_reduce(const std::vector<std::optional<Op>>& ops) {
  std::vector<at::Tensor> inputs;
  for (const auto& op : ops) inputs.push_back(op->output);
  const at::Tensor result = reduce_blocks(inputs, ops[0]->reduce);
  for (const auto& op : ops) op->output.copy_(result);
}

void run_all_gather(const std::vector<std::optional<Op>>& ops) {
  // An input may be a view of an output (gathering in place); it is then already in its place.
  const int64_t block = ops[0]->input.numel();
  for (const auto& to : ops)
    for (size_t from = 0; from < ops.size(); ++from)
      to->output.view(-1).narrow(0, static_cast<int64_t>(from) * block, block).copy_(ops[from]->input.view(-1));
}

void run_reduce_scatter(const std::vector<std::optional<Op>>& ops) {
  // Computes all results first: an output may be a view of an input (scattering in place).
  const int64_t block = ops[0]->output.numel();
  std::vector<at::Tensor> results;
  for (size_t r = 0; r < ops.size(); ++r) {
    std::vector<at::Tensor> parts;
    for (const auto& op : ops) parts.push_back(op->input.view(-1).narrow(0, static_cast<int64_t>(r) * block, block));
    results.push_back(reduce_blocks(parts, ops[0]->reduce));
  }
  for (size_t r = 0; r < ops.size(); ++r) ops[r]->output.view(-1).copy_(results[r]);
}

// Returns the rows of each member's block: the splits, or equal parts.
std::vector<int64_t> block_rows(const std::vector<int64_t>& splits, const at::Tensor& tensor, size_t members) {
  if (!splits.empty()) return splits;
  return std::vector<int64_t>(members, tensor.size(0) / static_cast<int64_t>(members));
}

// Goes through the senders in order, so block `from` of each output is filled before block `from` + 1.
void run_all_to_all(const std::vector<std::optional<Op>>& ops) {
  std::vector<int64_t> written(ops.size(), 0);  // rows of each output that are filled
  for (size_t from = 0; from < ops.size(); ++from) {
    const auto rows = block_rows(ops[from]->input_splits, ops[from]->input, ops.size());
    int64_t at = 0;
    for (size_t to = 0; to < ops.size(); ++to) {
      const auto expected = block_rows(ops[to]->output_splits, ops[to]->output, ops.size())[from];
      check<CommError>(rows[to] == expected, "all_to_all: group rank {} sends {} rows to {}, which expects {}", from,
                       rows[to], to, expected);
      ops[to]->output.narrow(0, written[to], expected).copy_(ops[from]->input.narrow(0, at, expected));
      at += expected;
      written[to] += expected;
    }
  }
}

// All members name the same root: run_collective has compared their signatures.
void run_broadcast(const std::vector<std::optional<Op>>& ops) {
  const auto root = static_cast<size_t>(ops[0]->peer);
  for (size_t r = 0; r < ops.size(); ++r)
    if (r != root) ops[r]->output.copy_(ops[root]->output);
}

// Entry 0 is the send, entry 1 the receive.
void run_transfer(const std::vector<std::optional<Op>>& ops) {
  const at::Tensor& from = ops[0]->output;
  const at::Tensor& to = ops[1]->output;
  check<CommError>(from.numel() == to.numel() && from.scalar_type() == to.scalar_type(),
                   "send and receive differ: {} versus {}", ops[0]->describe(), ops[1]->describe());
  to.view(-1).copy_(from.view(-1));
}

// Checks that all members call the same operation, and runs it.
void run_collective(const std::vector<std::optional<Op>>& ops) {
  for (size_t r = 1; r < ops.size(); ++r)
    check<CommError>(ops[r]->signature() == ops[0]->signature(),
                     "the ranks do not agree: group rank 0 calls {}, group rank {} calls {}", ops[0]->describe(), r,
                     ops[r]->describe());
  switch (ops[0]->kind) {
    case OpKind::kAllReduce:
      return run_all_reduce(ops);
    case OpKind::kAllGather:
      return run_all_gather(ops);
    case OpKind::kReduceScatter:
      return run_reduce_scatter(ops);
    case OpKind::kAllToAll:
      return run_all_to_all(ops);
    case OpKind::kBroadcast:
      return run_broadcast(ops);
    default:
      return;
  }
}

}  // namespace

// The place where the members of one group meet.
class Meeting {
 public:
  explicit Meeting(int size) : size_(static_cast<size_t>(size)) {}

  // Adds `op` as participant `place` of the operation `key`; the last of `parties` to join runs it.
  std::shared_ptr<MeetingOp> join(const std::string& key, size_t place, size_t parties, const Op& op);
  bool wait_for(MeetingOp& shared, std::chrono::milliseconds limit, const std::string& abort_reason);
  void notify() { changed_.notify_all(); }

  size_t size() const { return size_; }
  std::mutex& mutex() { return mutex_; }

 private:
  const size_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<MeetingOp>> open_;  // guarded by mutex_: operations that some have yet to join
};

namespace {

// One member's handle. It also holds the tensors, as the other transports do.
class ThreadPending : public PendingOp {
 public:
  ThreadPending(std::shared_ptr<Meeting> meeting, std::shared_ptr<MeetingOp> shared, const Op& op)
      : meeting_(std::move(meeting)), shared_(std::move(shared)), output_(op.output), input_(op.input) {}

  bool wait_for(std::chrono::milliseconds limit) override { return meeting_->wait_for(*shared_, limit, abort_reason_); }
  bool done() override {
    std::lock_guard lock(meeting_->mutex());
    return shared_->finished;
  }
  void abort(const std::string& reason) override {
    {
      std::lock_guard lock(meeting_->mutex());
      abort_reason_ = reason;
    }
    meeting_->notify();
  }
  std::vector<int> missing() override {
    std::lock_guard lock(meeting_->mutex());
    std::vector<int> ranks;
    for (size_t r = 0; r < shared_->ops.size(); ++r)
      if (!shared_->ops[r]) ranks.push_back(peer_of_ >= 0 ? peer_of_ : static_cast<int>(r));
    return ranks;
  }
  // For a transfer: the group rank that `missing` reports, whichever entry is empty.
  void set_peer(int peer) { peer_of_ = peer; }

 private:
  const std::shared_ptr<Meeting> meeting_;
  const std::shared_ptr<MeetingOp> shared_;
  const at::Tensor output_, input_;  // freed on the thread of their rank, which counts memory
  int peer_of_ = -1;
  std::string abort_reason_;  // guarded by meeting_->mutex()
};

class ThreadBackend : public Backend {
 public:
  ThreadBackend(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}

  // Both sides of a transfer form the same key: sender, receiver and their common number.
  std::shared_ptr<PendingOp> start(const Op& op) override {
    const at::NoGradGuard no_grad;
    if (!is_point_to_point(op.kind)) {
      const auto place = static_cast<size_t>(rank_);
      auto shared = meeting_->join(fmt::format("#{}", op.sequence), place, meeting_->size(), op);
      return std::make_shared<ThreadPending>(meeting_, std::move(shared), op);
    }
    const bool sends = op.kind == OpKind::kSend;
    const size_t place = sends ? 0 : 1;
    const std::string key = fmt::format("{}>{}#{}", sends ? rank_ : op.peer, sends ? op.peer : rank_, op.sequence);
    auto pending = std::make_shared<ThreadPending>(meeting_, meeting_->join(key, place, 2, op), op);
    pending->set_peer(op.peer);
    return pending;
  }

  std::vector<std::shared_ptr<PendingOp>> start_batch(const std::vector<Op>& ops) override {
    std::vector<std::shared_ptr<PendingOp>> pending;
    for (const Op& op : ops) pending.push_back(start(op));
    return pending;
  }

 private:
  const std::shared_ptr<Meeting> meeting_;
  const int rank_;
};

}  // namespace

std::shared_ptr<MeetingOp> Meeting::join(const std::string& key, size_t place, size_t parties, const Op& op) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<MeetingOp>& slot = open_[key];
  if (!slot) {
    slot = std::make_shared<MeetingOp>();
    slot->ops.resize(parties);
  }
  const std::shared_ptr<MeetingOp> shared = slot;
  shared->ops[place] = op;
  if (!std::ranges::all_of(shared->ops, [](const auto& joined) { return joined.has_value(); })) return shared;

  open_.erase(key);
  lock.unlock();  // nobody else touches `shared` until `finished` is set
  std::string error;
  try {
    is_point_to_point(op.kind) ? run_transfer(shared->ops) : run_collective(shared->ops);
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  lock.lock();
  shared->error = error;
  shared->finished = true;
  shared->ops.clear();  // releases the tensors
  lock.unlock();
  notify();
  return shared;
}

// `abort_reason` belongs to the handle, which changes it under the same mutex; hence the reference.
bool Meeting::wait_for(MeetingOp& shared, std::chrono::milliseconds limit, const std::string& abort_reason) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return shared.finished || !abort_reason.empty(); });
  if (!shared.finished) {
    check<CommError>(abort_reason.empty(), "{}", abort_reason);
    return false;
  }
  check<CommError>(shared.error.empty(), "{}", shared.error);
  return true;
}

ThreadHub::ThreadHub() = default;
ThreadHub::~ThreadHub() = default;

std::unique_ptr<Backend> ThreadHub::connect(const std::string& id, int rank, int size) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Meeting>& meeting = meetings_[id];
  if (!meeting) meeting = std::make_shared<Meeting>(size);
  return std::make_unique<ThreadBackend>(meeting, rank);
}

}  // namespace megalith::comm
