// Every operation takes the same path, on the thread of its rank:
//
//   check_op        shapes, device and peers, before anything is sent
//   run_alone       groups of one rank return here; no backend ever sees them
//   Starting::add   number and record the operation (in debug mode, compare it with the other members)
//   Starting::start connect the group at its first operation, hand the operation to the backend
//   Work::wait      wait within the limit, and turn a failure or a timeout into an error that names the culprit
//
// The record is made before the backend sees the operation, so that the watchdog can report one that blocks while it is
// being started. All functions below the line "The operations" only fill in an Op.
#include "megalith/comm/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/comm/group_internal.h"
#include "megalith/comm/op_checks_internal.h"

namespace megalith::comm {

namespace {

// Runs an operation of a group of one rank: copies its own data to where the result belongs.
void run_alone(const Op& op) {
  check(!is_point_to_point(op.kind), "{} '{}' to itself: a group of one rank has no peer", to_string(op.kind),
        op.label);
  if (op.input.defined() && !op.output.is_same(op.input)) op.output.view(-1).copy_(op.input.view(-1));
}

// Returns the bytes on the host, padded with zeros to `size`.
at::Tensor bytes_tensor(const std::string& bytes, int64_t size) {
  at::Tensor tensor = at::zeros({size}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

// Collectives of a group have one order on all members, so one counter does. Transfers have an order only between the
// two ranks, in each direction.
uint64_t GroupState::next_sequence(const Op& op) {
  return is_point_to_point(op.kind) ? ++transfers[{op.kind, op.peer}] : ++collectives;
}

Work::~Work() {
  for (const Part& part : parts_) {
    OpRecorder& recorder = group_->owner->recorder;
    // Only wait() learns whether a transfer on the host is over, so a dropped one is recorded as ended.
    if (is_point_to_point(part.op.kind) && !part.pending->runs_behind()) {
      recorder.end(part.record);
    } else {
      recorder.end_when_done(part.record, part.pending);
    }
  }
}

void Work::wait() {
  for (Part& part : std::exchange(parts_, {})) {
    RankState& owner = *group_->owner;
    // The limit counts from the start of the operation, so time spent computing since then is not added to it.
    const auto age = owner.recorder.age(part.record);
    const auto left = std::max(owner.timeout.load() - age, std::chrono::milliseconds(1));
    bool finished = false;
    const auto reached = part.pending->runs_behind() ? owner.marks.before_wait() : nullptr;
    const auto begun = OpRecorder::Clock::now();
    try {
      finished = part.pending->wait_for(left);
    } catch (const std::exception& error) {
      throw_failed(*group_, part.op, error.what());
    }
    if (reached)
      owner.marks.waited(part.op, group_->name.c_str(), reached);
    else
      owner.waited_ns += std::chrono::nanoseconds(OpRecorder::Clock::now() - begun).count();
    if (!finished) throw_timeout(*group_, part.op, part.pending->missing());
    // On CUDA the stream waits, not the host: the operation may still run, and the watchdog keeps track of it.
    if (part.pending->runs_behind()) {
      owner.recorder.end_when_done(part.record, part.pending->completion());
    } else {
      owner.recorder.end(part.record);
    }
  }
}

bool Work::done() const {
  return std::ranges::all_of(parts_, [](const Part& part) { return part.pending->done(); });
}

const std::string& Group::name() const { return state_->name; }
int Group::rank() const { return state_->rank; }
int Group::size() const { return static_cast<int>(state_->ranks.size()); }
const std::vector<int>& Group::ranks() const { return state_->ranks; }

at::Device Group::device() const { return state_->owner->device; }

// The records of operations that are about to be started. An operation that fails to start leaves no record.
class Group::Starting {
 public:
  explicit Starting(GroupState& group) : group_(group) {}
  ~Starting() {
    for (const uint64_t record : records_) group_.owner->recorder.end(record);
  }
  Starting(const Starting&) = delete;
  Starting& operator=(const Starting&) = delete;

  void add(Op& op) {
    op.sequence = group_.next_sequence(op);
    records_.push_back(group_.owner->recorder.begin(group_, op));
    const OpComparer& compare = group_.owner->compare;
    if (compare && !compare(group_, op)) throw_timeout(group_, op);
  }

  // Connects the group if this is its first operation, and starts `ops`, which have been added.
  std::vector<std::shared_ptr<PendingOp>> start(const std::vector<Op>& ops, bool as_batch) {
    try {
      if (!group_.backend) group_.backend = group_.owner->connect(group_);
      if (as_batch) return group_.backend->start_batch(ops);
      return {group_.backend->start(ops.front())};
    } catch (const std::exception& error) {
      throw_failed(group_, ops.front(), first_line(error.what()));
    }
  }

  // Hands the started operations over to the recorder, and aborts them if the run has ended meanwhile.
  std::vector<uint64_t> hand_over(const std::vector<std::shared_ptr<PendingOp>>& pending) {
    RankState& owner = *group_.owner;
    std::vector<uint64_t> records = std::exchange(records_, {});
    for (size_t i = 0; i < records.size(); ++i) {
      owner.recorder.started(records[i], pending[i]);
      owner.abort_if_over(*pending[i]);
    }
    return records;
  }

 private:
  GroupState& group_;
  std::vector<uint64_t> records_;
};

Work Group::start(Op op) const {
  check(state_ != nullptr, "{} '{}' on an empty Group; make it with World::group", to_string(op.kind), op.label);
  check_op(*state_, op);
  if (size() == 1) {
    run_alone(op);
    return {};
  }
  return start_all({std::move(op)}, /*as_batch=*/false);
}

// A single send is a batch of one, so all transfers take one path.
Work Group::start_transfers(const std::vector<Transfer>& transfers, const char* label) const {
  std::vector<Op> ops;
  for (const Transfer& transfer : transfers) {
    Op op{.kind = transfer.kind, .label = label, .peer = transfer.peer, .output = transfer.tensor};
    check(is_point_to_point(op.kind), "batch '{}' of group {}: {} is neither send nor recv", label, name(),
          to_string(op.kind));
    check_op(*state_, op);
    check(op.peer != rank(), "batch '{}' of group {}: {} to itself", label, name(), to_string(op.kind));
    ops.push_back(std::move(op));
  }
  if (ops.empty()) return {};
  return start_all(std::move(ops), /*as_batch=*/true);
}

Work Group::start_all(std::vector<Op> ops, bool as_batch) const {
  GroupState& group = *state_;
  // Fails at once after a failure elsewhere: an operation that the others will never join would wait for its limit.
  group.owner->throw_if_over();
  Starting starting(group);
  for (Op& op : ops) starting.add(op);
  const auto issued = group.owner->marks.issue();
  auto pending = starting.start(ops, as_batch);
  group.owner->marks.started(ops, group.name.c_str(), issued, group.backend->stream());
  const std::vector<uint64_t> records = starting.hand_over(pending);
  Work work;
  work.group_ = state_;
  for (size_t i = 0; i < ops.size(); ++i) work.parts_.push_back({std::move(pending[i]), records[i], ops[i]});
  return work;
}

// Exchanges one byte with every peer that is not connected yet, as one batch.
void Group::open_transfers(const std::vector<int>& send_to, const std::vector<int>& receive_from) const {
  if (size() == 1) return;
  std::vector<Transfer> missing;
  const auto open = [&](OpKind kind, const std::vector<int>& peers) {
    for (const int peer : peers)
      if (state_->opened.insert({kind, peer}).second)
        missing.push_back({kind, at::zeros({1}, at::TensorOptions(at::kByte).device(device())), peer});
  };
  open(OpKind::kSend, send_to);
  open(OpKind::kRecv, receive_from);
  if (missing.empty()) return;
  batch(missing, "connecting");
  // On CUDA only the stream has waited; reading the values makes the host wait, too.
  for (const Transfer& transfer : missing) (void)transfer.tensor.item();
}

// ---- The operations ----
// Each names its arguments, start() does the rest; the blocking form waits for the asynchronous one.

Work Group::all_reduce_async(const at::Tensor& tensor, ReduceOp op, const char* label) const {
  return start({.kind = OpKind::kAllReduce, .label = label, .reduce = op, .output = tensor});
}
void Group::all_reduce(const at::Tensor& tensor, ReduceOp op, const char* label) const {
  all_reduce_async(tensor, op, label).wait();
}

Work Group::all_gather_async(const at::Tensor& output, const at::Tensor& input, const char* label) const {
  return start({.kind = OpKind::kAllGather, .label = label, .output = output, .input = input});
}
void Group::all_gather(const at::Tensor& output, const at::Tensor& input, const char* label) const {
  all_gather_async(output, input, label).wait();
}

Work Group::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                 const char* label) const {
  return start({.kind = OpKind::kReduceScatter, .label = label, .reduce = op, .output = output, .input = input});
}
void Group::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op, const char* label) const {
  reduce_scatter_async(output, input, op, label).wait();
}

Work Group::all_to_all_async(const at::Tensor& output, const at::Tensor& input, std::vector<int64_t> output_splits,
                             std::vector<int64_t> input_splits, const char* label) const {
  return start({.kind = OpKind::kAllToAll,
                .label = label,
                .output = output,
                .input = input,
                .output_splits = std::move(output_splits),
                .input_splits = std::move(input_splits)});
}
void Group::all_to_all(const at::Tensor& output, const at::Tensor& input, std::vector<int64_t> output_splits,
                       std::vector<int64_t> input_splits, const char* label) const {
  all_to_all_async(output, input, std::move(output_splits), std::move(input_splits), label).wait();
}

Work Group::broadcast_async(const at::Tensor& tensor, int root, const char* label) const {
  return start({.kind = OpKind::kBroadcast, .label = label, .peer = root, .output = tensor});
}
void Group::broadcast(const at::Tensor& tensor, int root, const char* label) const {
  broadcast_async(tensor, root, label).wait();
}

Work Group::send_async(const at::Tensor& tensor, int peer, const char* label) const {
  return start_transfers({{OpKind::kSend, tensor, peer}}, label);
}
void Group::send(const at::Tensor& tensor, int peer, const char* label) const {
  send_async(tensor, peer, label).wait();
}

Work Group::recv_async(const at::Tensor& tensor, int peer, const char* label) const {
  return start_transfers({{OpKind::kRecv, tensor, peer}}, label);
}
void Group::recv(const at::Tensor& tensor, int peer, const char* label) const {
  recv_async(tensor, peer, label).wait();
}

Work Group::batch_async(const std::vector<Transfer>& transfers, const char* label) const {
  return start_transfers(transfers, label);
}
void Group::batch(const std::vector<Transfer>& transfers, const char* label) const {
  batch_async(transfers, label).wait();
}

void Group::barrier(const char* label) const { start({.kind = OpKind::kBarrier, .label = label}).wait(); }

std::vector<std::string> Group::all_gather_bytes(const std::string& bytes, const char* label) const {
  // Lengths first, then every member's bytes padded to the longest.
  const auto on_device = at::TensorOptions().device(device());
  const at::Tensor lengths = at::empty({size()}, on_device.dtype(at::kLong));
  all_gather(lengths, at::full({1}, static_cast<int64_t>(bytes.size()), on_device.dtype(at::kLong)), label);
  const at::Tensor host_lengths = lengths.cpu();
  const auto* length = host_lengths.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(length, length + size());

  const at::Tensor padded = bytes_tensor(bytes, longest);
  at::Tensor all = at::empty({size() * longest}, on_device.dtype(at::kByte));
  if (longest > 0) all_gather(all, padded.to(device()), label);
  all = all.cpu();

  std::vector<std::string> parts;
  const auto* data = reinterpret_cast<const char*>(all.const_data_ptr());
  for (int r = 0; r < size(); ++r) parts.emplace_back(data + r * longest, static_cast<size_t>(length[r]));
  return parts;
}

std::vector<std::string> Group::gather_bytes(const std::string& bytes, int root, const char* label) const {
  const auto on_device = at::TensorOptions().device(device());
  const at::Tensor lengths = at::empty({size()}, on_device.dtype(at::kLong));
  all_gather(lengths, at::full({1}, static_cast<int64_t>(bytes.size()), on_device.dtype(at::kLong)), label);
  const at::Tensor host_lengths = lengths.cpu();
  const auto* length = host_lengths.const_data_ptr<int64_t>();
  // Everybody sends to the root alone: an all-to-all in which only the root's blocks have rows.
  std::vector<int64_t> send(static_cast<size_t>(size()), 0), receive(static_cast<size_t>(size()), 0);
  send.at(static_cast<size_t>(root)) = static_cast<int64_t>(bytes.size());
  if (rank() == root) receive.assign(length, length + size());
  const at::Tensor own = bytes_tensor(bytes, static_cast<int64_t>(bytes.size())).to(device());
  const int64_t total = std::accumulate(receive.begin(), receive.end(), int64_t{0});
  at::Tensor all = at::empty({total}, on_device.dtype(at::kByte));
  all_to_all(all, own, receive, send, label);
  std::vector<std::string> parts;
  if (rank() != root) return parts;
  all = all.cpu();
  const auto* data = reinterpret_cast<const char*>(all.const_data_ptr());
  for (const int64_t count : receive) {
    parts.emplace_back(data, static_cast<size_t>(count));
    data += count;
  }
  return parts;
}

std::string Group::broadcast_bytes(const std::string& bytes, int root, const char* label) const {
  at::Tensor length = at::full({1}, static_cast<int64_t>(bytes.size()), at::TensorOptions(at::kLong).device(device()));
  broadcast(length, root, label);
  // Every member needs the length before it can allocate; the second broadcast is skipped on all of them alike.
  const auto size_in_bytes = length.item<int64_t>();
  if (size_in_bytes == 0) return "";
  at::Tensor data = bytes_tensor(rank() == root ? bytes : "", size_in_bytes).to(device());
  broadcast(data, root, label);
  data = data.cpu();
  return {reinterpret_cast<const char*>(data.const_data_ptr()), static_cast<size_t>(size_in_bytes)};
}

}  // namespace megalith::comm
