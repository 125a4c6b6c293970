// Adapts c10d's process groups. The two libraries differ in who waits:
//
//            wait() blocks   limit and abort                                       reduce-scatter   transfers
//   Gloo     the host        collectives in slices; transfers by Work::abort       by all-reduce    through host memory
//   NCCL     the stream      none here: the watchdog reads the marks of the stream native           coalesced launch
//
// For NCCL, each operation gets two marks on the stream (StreamMarks), before it and after the wait, which tell the
// watchdog where the device is without asking the driver. Barriers are the exception: there the host must know, so it
// polls. Operations that are recorded into a CUDA graph have no marks, and our watchdog does not see their replays.
#include "megalith/comm/backend/c10d_backend.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::comm {

namespace {

using std::chrono::milliseconds;

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

// The types that c10d's transports can move and reduce.
bool has_native_transport(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

// Operations that only move data accept any dtype: those unknown to c10d are sent as bytes. [r, …] -> [r, bytes per
// row]
at::Tensor movable(const at::Tensor& tensor) {
  if (!tensor.defined() || has_native_transport(tensor.scalar_type())) return tensor;
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  return tensor.view({rows, rows == 0 ? 1 : tensor.numel() / rows}).view(at::kByte);
}

// An operation of c10d. Gloo's collectives can be waited for in slices; its transfers cannot (a wait that times out
// breaks the connection), but they can be aborted.
class C10dPending : public PendingOp {
 public:
  // `marks` are those of the stream that waits; nullptr if the host waits. `arrival`: see PendingOp.
  C10dPending(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<StreamMarks> marks, OpKind kind,
              std::shared_ptr<Completion> arrival)
      : work_(std::move(work)),
        marks_(std::move(marks)),
        arrival_(std::move(arrival)),
        waits_on_host_(marks_ == nullptr),
        recorded_(marks_ != nullptr && marks_->recording()),
        is_transfer_(is_point_to_point(kind)),
        is_barrier_(kind == OpKind::kBarrier) {}

  // Keeps a tensor alive, and copies it to `target` (if defined) when the operation is done.
  void stage(at::Tensor staged, at::Tensor target) {
    staged_ = std::move(staged);
    target_ = std::move(target);
  }

  // Every exception of c10d becomes a CommError with its first line; the rest is a stack trace.
  bool wait_for(milliseconds limit) override {
    try {
      if (!waits_on_host_) {
        if (is_barrier_ && !poll_until_done(limit)) return false;
        work_->wait();
      } else if (is_transfer_ ? !wait_transfer(limit) : !wait_in_slices(limit)) {
        return false;
      }
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      throw CommError(first_line(error.what()));
    }
    if (target_.defined()) target_.copy_(staged_.view(target_.sizes()));
    return true;
  }

  // c10d would query an event that only the graph knows.
  bool done() override { return recorded_ || work_->isCompleted(); }
  bool runs_behind() const override { return !waits_on_host_ && !is_barrier_; }
  std::shared_ptr<Completion> arrival() override { return arrival_; }
  std::shared_ptr<Completion> completion() override { return marks_->mark(); }

  void abort(const std::string& reason) override {
    {
      std::lock_guard lock(mutex_);
      abort_reason_ = reason;
    }
    aborted_ = true;
    if (is_transfer_ && waits_on_host_) work_->abort();
  }

 private:
  // Slices keep the host responsive to abort().
  bool wait_in_slices(milliseconds limit) {
    constexpr milliseconds kSlice{500};
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (true) {
      throw_if_aborted();
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
      try {
        work_->wait(std::clamp(left, milliseconds(1), kSlice));
        return true;
      } catch (const std::exception&) {
        // The slice ended, or the operation failed, or it finished between the two: a second wait throws the real
        // error.
        if (work_->isCompleted()) return work_->wait();
      }
      if (std::chrono::steady_clock::now() >= deadline) return false;
    }
  }

  // For a barrier on a device, which may take long (another rank writes a checkpoint): the host sleeps in between.
  bool poll_until_done(milliseconds limit) {
    constexpr std::chrono::microseconds kLongestPause{5000};
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (std::chrono::microseconds pause{20}; !work_->isCompleted(); pause = std::min(2 * pause, kLongestPause)) {
      throw_if_aborted();
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(pause);
    }
    return true;
  }

  // One wait with the full limit, which abort() can end from another thread.
  bool wait_transfer(milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    try {
      if (work_->wait(limit)) return true;
    } catch (const std::exception&) {
      throw_if_aborted();
      if (std::chrono::steady_clock::now() >= deadline) return false;
      throw;
    }
    throw_if_aborted();
    throw CommError("the transfer was aborted");
  }

  void throw_if_aborted() {
    if (!aborted_) return;
    std::lock_guard lock(mutex_);
    throw CommError(abort_reason_);
  }

  const c10::intrusive_ptr<c10d::Work> work_;
  const std::shared_ptr<StreamMarks> marks_;
  const std::shared_ptr<Completion> arrival_;
  const bool waits_on_host_;
  const bool recorded_;  // into a graph: nothing runs, and c10d's watchdog does not know the operation either
  const bool is_transfer_;
  const bool is_barrier_;
  at::Tensor staged_, target_;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;
  std::string abort_reason_;  // guarded by mutex_
};

// Between startCoalescing and endCoalescing NCCL's group is open for the whole process, so it must be closed on every
// path.
class CoalescedTransfers {
 public:
  explicit CoalescedTransfers(c10d::Backend& backend) : backend_(backend) { backend_.startCoalescing(); }
  ~CoalescedTransfers() {
    if (closed_) return;
    try {
      (void)backend_.endCoalescing();
    } catch (const std::exception&) {
      // The exception in flight says more.
    }
  }
  CoalescedTransfers(const CoalescedTransfers&) = delete;
  CoalescedTransfers& operator=(const CoalescedTransfers&) = delete;

  c10::intrusive_ptr<c10d::Work> launch() {
    closed_ = true;
    return backend_.endCoalescing();
  }

 private:
  c10d::Backend& backend_;
  bool closed_ = false;
};

// While it lives, libtorch's profiler does not see what this thread starts. Gloo's own threads report the end of an
// operation to the profiler that was there at its start: after the profile, into memory that is gone.
class Unobserved {
 public:
  explicit Unobserved(bool gloo) {
    if (gloo) guard_.emplace(/*is_enabled=*/false);
  }

 private:
  std::optional<at::RecordFunctionGuard> guard_;
};

// Implements Backend on a c10d process group.
class C10dBackend : public Backend {
 public:
  C10dBackend(c10::intrusive_ptr<c10d::Backend> inner, at::Device device, std::shared_ptr<StreamMarks> marks,
              BackendStream stream)
      : inner_(std::move(inner)),
        marks_(std::move(marks)),
        waits_on_host_(marks_ == nullptr),
        device_(device),
        stream_(std::move(stream)) {}

  // Special cases first; everything else is one call of c10d.
  std::shared_ptr<PendingOp> start(const Op& op) override {
    const Unobserved unobserved(waits_on_host_);
    if (is_point_to_point(op.kind)) return start_batch({op})[0];
    if (op.kind == OpKind::kReduceScatter && waits_on_host_) return start_host_reduce_scatter(op);
    if (op.kind == OpKind::kBarrier && !waits_on_host_) return start_device_barrier(op);
    const auto arrival = position();
    return pending(start_collective(op), op.kind, arrival);
  }

  std::vector<std::shared_ptr<PendingOp>> start_batch(const std::vector<Op>& ops) override {
    const Unobserved unobserved(waits_on_host_);
    std::vector<std::shared_ptr<PendingOp>> handles;
    if (inner_->supportsCoalescing()) {
      // NCCL: one launch for all, which is what keeps crossing sends from deadlocking.
      const auto arrival = position();
      CoalescedTransfers transfers(*inner_);
      for (const Op& op : ops) start_transfer(op, movable(op.output));
      const auto work = transfers.launch();
      for (const Op& op : ops) handles.push_back(pending(work, op.kind, arrival));
      return handles;
    }
    for (const Op& op : ops) handles.push_back(start_host_transfer(op));
    return handles;
  }

  std::optional<c10::Stream> stream() const override { return stream_ ? stream_() : std::nullopt; }
  void shutdown() override { inner_->shutdown(); }

 private:
  std::shared_ptr<C10dPending> pending(c10::intrusive_ptr<c10d::Work> work, OpKind kind,
                                       std::shared_ptr<Completion> arrival = nullptr) const {
    return std::make_shared<C10dPending>(std::move(work), marks_, kind, std::move(arrival));
  }

  // Marks the end of what the device has been given so far; nullptr if the host waits for operations.
  std::shared_ptr<Completion> position() const { return marks_ ? marks_->mark() : nullptr; }

  // c10d's own barrier guesses a device. Instead, all-reduces one element on the device of the group's operations.
  std::shared_ptr<PendingOp> start_device_barrier(const Op& op) {
    Op reduce = op;
    reduce.kind = OpKind::kAllReduce;
    reduce.output = at::zeros({1}, at::TensorOptions(at::kInt).device(device_));
    const auto arrival = position();
    auto handle = pending(start_collective(reduce), OpKind::kBarrier, arrival);
    handle->stage(reduce.output, {});
    return handle;
  }

  // One switch for all collectives. Reductions need a type that c10d can add; the others may move bytes.
  c10::intrusive_ptr<c10d::Work> start_collective(const Op& op) {
    at::Tensor output = op.output;
    at::Tensor input = op.input;
    const bool reduces = op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduceScatter;
    if (reduces) {
      check(has_native_transport(output.scalar_type()), "{}: {} tensors cannot be reduced", op.describe(),
            c10::toString(output.scalar_type()));
    } else {
      output = movable(output);
      input = movable(input);
    }
    std::vector<at::Tensor> one{output};
    switch (op.kind) {
      case OpKind::kAllReduce: {
        c10d::AllreduceOptions options;
        options.reduceOp = to_c10d(op.reduce);
        return inner_->allreduce(one, options);
      }
      case OpKind::kAllGather:
        return inner_->_allgather_base(output, input);
      case OpKind::kReduceScatter: {
        c10d::ReduceScatterOptions options;
        options.reduceOp = to_c10d(op.reduce);
        return inner_->_reduce_scatter_base(output, input, options);
      }
      case OpKind::kAllToAll: {
        auto output_splits = op.output_splits;
        auto input_splits = op.input_splits;
        return inner_->alltoall_base(output, input, output_splits, input_splits);
      }
      case OpKind::kBroadcast: {
        c10d::BroadcastOptions options;
        options.rootRank = op.peer;
        return inner_->broadcast(one, options);
      }
      default:
        return inner_->barrier();
    }
  }

  c10::intrusive_ptr<c10d::Work> start_transfer(const Op& op, const at::Tensor& tensor) {
    std::vector<at::Tensor> one{tensor};
    return op.kind == OpKind::kSend ? inner_->send(one, op.peer, 0) : inner_->recv(one, op.peer, 0);
  }

  // Gloo has no reduce-scatter. c10d builds one from an all-reduce of a copy, as this does, but then cannot tell when
  // it is done.
  std::shared_ptr<PendingOp> start_host_reduce_scatter(const Op& op) {
    const at::Tensor all = op.input.clone();
    Op reduce = op;
    reduce.kind = OpKind::kAllReduce;
    reduce.output = all;
    auto handle = pending(start_collective(reduce), op.kind);
    const int64_t block = op.output.numel();
    handle->stage(all.view(-1).narrow(0, inner_->getRank() * block, block), op.output);
    return handle;
  }

  // Between two ranks, Gloo moves host memory only: CUDA tensors pass through a host copy.
  std::shared_ptr<PendingOp> start_host_transfer(const Op& op) {
    const at::Tensor tensor = movable(op.output);
    const bool staged = !tensor.is_cpu();
    at::Tensor host = tensor;
    if (staged) host = op.kind == OpKind::kSend ? tensor.cpu() : at::empty_like(tensor, at::kCPU);
    auto handle = pending(start_transfer(op, host), op.kind);
    handle->stage(host, staged && op.kind == OpKind::kRecv ? tensor : at::Tensor());
    return handle;
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<StreamMarks> marks_;  // nullptr if the host waits
  const bool waits_on_host_;
  const at::Device device_;
  const BackendStream stream_;
};

}  // namespace

std::unique_ptr<Backend> wrap_c10d(c10::intrusive_ptr<c10d::Backend> inner, at::Device device,
                                   std::shared_ptr<StreamMarks> marks, BackendStream stream) {
  return std::make_unique<C10dBackend>(std::move(inner), device, std::move(marks), std::move(stream));
}

std::unique_ptr<Backend> make_gloo_backend(const C10dGroup& group, const std::string& interface,
                                           const std::string& host) {
  using Gloo = c10d::ProcessGroupGloo;
  // Gloo's own limit only has to be later than ours, which gives the better message.
  const auto options = Gloo::Options::create(group.timeout + std::chrono::seconds(30));
  try {
    options->devices.push_back(!interface.empty() ? Gloo::createDeviceForInterface(interface)
                               : !host.empty()    ? Gloo::createDeviceForHostname(host)
                                                  : Gloo::createDefaultDevice());
  } catch (const std::exception& error) {
    throw CommError(fmt::format(
        "Gloo cannot use {} \"{}\": {}. Set MEGALITH_SOCKET_IFNAME to one of this machine's"
        " interfaces (see `ip link`).",
        interface.empty() ? "address" : "interface", interface.empty() ? host : interface, first_line(error.what())));
  }
  return wrap_c10d(c10::make_intrusive<Gloo>(group.store, group.rank, group.size, options), group.device);
}

}  // namespace megalith::comm
