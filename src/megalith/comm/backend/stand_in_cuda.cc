// Stand-ins on CUDA. A queue is a stream of high priority, on which each call goes through this:
//
//   wait for the rank's computation ─ hold until the peers have sent ─ stamp ─ move the data ─ hold for `lasts`
//                                                                    └ event: sent                  event: done ┘
//
// Its handle makes the current stream wait for both events, between three events that measure how long that took:
// before, after `sent`, after `done`. They are read at the end of a step, so the host waits for nothing.
// Compiled only with MEGALITH_CUDA.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <mutex>

#include "megalith/base/error.h"
#include "megalith/comm/backend/stand_in.h"
#include "megalith/comm/backend/stand_in_delay.h"
#include "megalith/comm/op/stream_marks.h"

namespace megalith::comm {

namespace {

int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

void check_delay(const char* error) {
  check<CommError>(error == nullptr, "a stand-in cannot be started on the GPU: {}", error == nullptr ? "" : error);
}

// A word of device memory that holds a time.
class TimeStamp {
 public:
  explicit TimeStamp(c10::Device device) : word_(at::zeros({1}, at::TensorOptions(at::kLong).device(device))) {}
  uint64_t* get() const { return reinterpret_cast<uint64_t*>(word_.mutable_data_ptr<int64_t>()); }

 private:
  const at::Tensor word_;
};

// Events around one wait of the rank's stream.
struct MeasuredWait {
  std::string group;
  at::cuda::CUDAEvent before{cudaEventDefault}, sent{cudaEventDefault}, done{cudaEventDefault};
};

// Shared with queues and handles, which may outlive the device.
struct CudaAccount {
  explicit CudaAccount(c10::Device which) : device(which), marks(make_stream_marks(which)), step_began(which) {}
  const c10::Device device;
  const std::shared_ptr<StreamMarks> marks;
  const TimeStamp step_began;
  std::mutex mutex;
  std::vector<std::unique_ptr<MeasuredWait>> waits;  // guarded by mutex
};

class CudaPending : public PendingOp {
 public:
  CudaPending(std::shared_ptr<CudaAccount> account, const StandInCall& call, c10::cuda::CUDAStream stream,
              std::shared_ptr<Completion> arrival)
      : account_(std::move(account)),
        group_(call.group.name),
        ops_(call.ops),
        stream_(stream),
        arrival_(std::move(arrival)),
        is_barrier_(call.ops.front().kind == OpKind::kBarrier) {}

  // If nobody has waited, the stream may still use the tensors: their memory is reused only after it.
  ~CudaPending() override {
    for (const Op& op : ops_)
      for (const at::Tensor& tensor : {op.output, op.input})
        if (tensor.defined()) tensor.record_stream(stream_.unwrap());
  }

  bool wait_for(std::chrono::milliseconds) override {
    if (ops_.empty()) return true;
    const auto current = c10::cuda::getCurrentCUDAStream(account_->device.index());
    auto wait = std::make_unique<MeasuredWait>();
    wait->group = group_;
    wait->before.record(current);
    sent_.block(current);
    wait->sent.record(current);
    done_.block(current);
    wait->done.record(current);
    if (is_barrier_) done_.synchronize();
    ops_.clear();
    std::lock_guard lock(account_->mutex);
    account_->waits.push_back(std::move(wait));
    return true;
  }

  bool done() override { return done_.query(); }
  bool runs_behind() const override { return !is_barrier_; }
  std::shared_ptr<Completion> arrival() override { return arrival_; }
  std::shared_ptr<Completion> completion() override { return account_->marks->mark(); }
  void abort(const std::string&) override {}  // it ends by itself

  // Recorded on the queue's stream by the queue.
  at::cuda::CUDAEvent& sent_event() { return sent_; }
  at::cuda::CUDAEvent& done_event() { return done_; }

 private:
  const std::shared_ptr<CudaAccount> account_;
  const std::string group_;
  std::vector<Op> ops_;  // keeps their tensors alive; empty once the rank's stream has waited
  const c10::cuda::CUDAStream stream_;
  const std::shared_ptr<Completion> arrival_;
  const bool is_barrier_;
  at::cuda::CUDAEvent sent_, done_;
};

class CudaQueue : public StandInQueue {
 public:
  explicit CudaQueue(std::shared_ptr<CudaAccount> account)
      : account_(std::move(account)),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, account_->device.index())),
        began_(account_->device) {
    // Both words were zeroed on the stream that is current now.
    at::cuda::CUDAEvent zeroed;
    zeroed.record(c10::cuda::getCurrentCUDAStream(account_->device.index()));
    zeroed.block(stream_);
  }

  std::shared_ptr<PendingOp> run(const StandInCall& call) override {
    const auto current = c10::cuda::getCurrentCUDAStream(account_->device.index());
    auto pending = std::make_shared<CudaPending>(account_, call, stream_, account_->marks->mark());
    at::cuda::CUDAEvent computed;
    computed.record(current);
    computed.block(stream_);
    const c10::cuda::CUDAStreamGuard on_queue(stream_);
    if (call.sent > 0) check_delay(hold_stream(account_->step_began.get(), nanoseconds(call.sent), stream_.stream()));
    pending->sent_event().record(stream_);
    check_delay(stamp_device_time(began_.get(), stream_.stream()));
    write_results(call);
    check_delay(hold_stream(began_.get(), nanoseconds(call.lasts), stream_.stream()));
    pending->done_event().record(stream_);
    return pending;
  }
  std::optional<c10::Stream> stream() const override { return stream_.unwrap(); }

 private:
  const std::shared_ptr<CudaAccount> account_;
  const c10::cuda::CUDAStream stream_;
  const TimeStamp began_;  // when the data of the current call began to move; calls do not overlap
};

class CudaStandIns : public StandInDevice {
 public:
  explicit CudaStandIns(c10::Device device) : account_(std::make_shared<CudaAccount>(device)) {}

  // Queues read the stamp after `computed`, which the rank's stream records later than this.
  void begin_step() override {
    const auto current = c10::cuda::getCurrentCUDAStream(account_->device.index());
    check_delay(stamp_device_time(account_->step_began.get(), current.stream()));
  }
  std::unique_ptr<StandInQueue> open_queue() override { return std::make_unique<CudaQueue>(account_); }

  std::map<std::string, StandInWaits> take_waits() override {
    std::lock_guard lock(account_->mutex);
    std::map<std::string, StandInWaits> sums;
    for (const auto& wait : std::exchange(account_->waits, {})) {
      StandInWaits& sum = sums[wait->group];
      sum.for_peers += static_cast<double>(wait->before.elapsed_time(wait->sent)) / 1e3;
      sum.exposed += static_cast<double>(wait->sent.elapsed_time(wait->done)) / 1e3;
    }
    return sums;
  }

 private:
  const std::shared_ptr<CudaAccount> account_;
};

}  // namespace

std::unique_ptr<StandInDevice> make_cuda_stand_ins(c10::Device device) {
  return std::make_unique<CudaStandIns>(device);
}

}  // namespace megalith::comm
