// Marks by CUDA events. Compiled only with MEGALITH_CUDA.
//
// Nothing here throws into a span's destructor: a device that has failed gives no marks and no times, and the next
// operation on it reports the failure.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <vector>

#include "megalith/comm/op/device_clock.h"

namespace megalith::comm {

namespace {

int64_t steady_ns() {
  using std::chrono::duration_cast, std::chrono::nanoseconds, std::chrono::steady_clock;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

// Events that measure time. Creating one takes several microseconds, so they are reused. Recording an event again is
// allowed whether or not the device has passed it.
class EventPool {
 public:
  ~EventPool() {
    for (const cudaEvent_t event : free_) (void)cudaEventDestroy(event);
  }
  // Requires the device to be current.
  cudaEvent_t take() {
    std::unique_lock lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
    lock.unlock();
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDefault));
    return event;
  }
  void give_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;  // guarded by mutex_
};

class TimedEvent {
 public:
  // Records it on the stream. Requires the device to be current.
  TimedEvent(std::shared_ptr<EventPool> pool, cudaStream_t stream) : pool_(std::move(pool)), event_(pool_->take()) {
    C10_CUDA_CHECK(cudaEventRecord(event_, stream));
  }
  ~TimedEvent() { pool_->give_back(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  bool passed() const {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) (void)cudaGetLastError();  // not a failure: nobody else should see it
    return error == cudaSuccess;
  }
  void wait() const { (void)cudaEventSynchronize(event_); }
  // Returns nanoseconds from `earlier`, negative if that was later. Both must have been passed.
  std::optional<int64_t> since(const TimedEvent& earlier) const {
    float ms = 0;
    if (cudaEventElapsedTime(&ms, earlier.event_, event_) != cudaSuccess) return std::nullopt;
    return std::llround(static_cast<double>(ms) * 1e6);
  }

 private:
  const std::shared_ptr<EventPool> pool_;
  const cudaEvent_t event_;
};

// An event on an idle stream, and the host's time just before it was recorded.
class Anchor {
 public:
  Anchor(std::shared_ptr<EventPool> pool, cudaStream_t stream, std::shared_ptr<Anchor> before)
      : noted_ns_(steady_ns()), event_(std::move(pool), stream), before_(std::move(before)) {}

  const TimedEvent& event() const { return event_; }
  // Returns when the device passed it: not before the host noted the time, and not before what the anchor before it
  // tells. Anchors are passed in their order, so one that has been passed finds the one before it passed.
  std::optional<int64_t> time_ns() {
    const std::lock_guard lock(mutex_);
    if (time_ns_ || !event_.passed()) return time_ns_;
    int64_t time = noted_ns_;
    if (before_) {
      const auto earlier = before_->time_ns(), since = event_.since(before_->event());
      if (!earlier || !since) return std::nullopt;
      time = std::max(time, *earlier + *since);
      before_.reset();
    }
    return time_ns_ = time;
  }

 private:
  const int64_t noted_ns_;
  const TimedEvent event_;
  std::mutex mutex_;
  std::shared_ptr<Anchor> before_;  // guarded by mutex_; nullptr once the time is known
  std::optional<int64_t> time_ns_;  // guarded by mutex_
};

class CudaMark : public DeviceMark {
 public:
  CudaMark(std::shared_ptr<EventPool> pool, cudaStream_t stream, std::shared_ptr<Anchor> anchor)
      : anchor_(std::move(anchor)), event_(std::move(pool), stream) {}

  std::optional<int64_t> time_ns() noexcept override {
    const std::lock_guard lock(mutex_);
    if (!time_ns_ && event_.passed())
      if (const auto origin = anchor_->time_ns(), since = origin ? event_.since(anchor_->event()) : origin; since)
        time_ns_ = *origin + *since;
    return time_ns_;
  }
  void wait() noexcept override {
    anchor_->event().wait();
    event_.wait();
  }

 private:
  const std::shared_ptr<Anchor> anchor_;
  const TimedEvent event_;
  std::mutex mutex_;
  std::optional<int64_t> time_ns_;  // guarded by mutex_
};

class CudaDeviceClock : public DeviceClock {
 public:
  explicit CudaDeviceClock(c10::Device device) : device_(device) {
    const c10::cuda::CUDAGuard here(device_);
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&idle_, cudaStreamNonBlocking));
  }
  ~CudaDeviceClock() override { (void)cudaStreamDestroy(idle_); }

  std::shared_ptr<DeviceMark> mark() noexcept override {
    try {
      const c10::cuda::CUDAGuard here(device_);
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
      cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
      if (cudaStreamIsCapturing(stream, &recording) != cudaSuccess || recording != cudaStreamCaptureStatusNone)
        return nullptr;
      return std::make_shared<CudaMark>(events_, stream, anchor());
    } catch (const std::exception&) {
      return nullptr;
    }
  }

  void align() noexcept override {
    const std::lock_guard lock(mutex_);
    anchor_.reset();
  }

 private:
  // Returns an anchor that is young: cudaEventElapsedTime has 24 bits, which for a second resolve 60 ns.
  std::shared_ptr<Anchor> anchor() {
    constexpr int64_t kYoungNs = 1'000'000'000;
    const std::lock_guard lock(mutex_);
    const int64_t now = steady_ns();
    if (anchor_ && now - placed_ns_ < kYoungNs) return anchor_;
    if (anchor_) (void)anchor_->time_ns();  // lets go of the one before it
    anchor_ = std::make_shared<Anchor>(events_, idle_, anchor_);
    placed_ns_ = now;
    return anchor_;
  }

  const c10::Device device_;
  const std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>();
  cudaStream_t idle_ = nullptr;  // nothing but anchors runs on it
  std::mutex mutex_;
  std::shared_ptr<Anchor> anchor_;  // the newest; guarded by mutex_
  int64_t placed_ns_ = 0;           // guarded by mutex_
};

}  // namespace

std::shared_ptr<DeviceClock> make_device_clock(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  return std::make_shared<CudaDeviceClock>(device);
}

}  // namespace megalith::comm
