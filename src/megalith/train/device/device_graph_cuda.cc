// DeviceGraph as a CUDA graph. Compiled only with MEGALITH_CUDA.
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>

#include "megalith/train/device/device_graph.h"

namespace megalith::train {

namespace {

// While it lives, the device's default generator has another state. A graph takes charge of the state that it finds
// when recording begins, and one that fails does not let go of it: no kernel could draw from it any more.
class SpareGeneratorState {
 public:
  SpareGeneratorState()
      : generator_(at::cuda::detail::getDefaultCUDAGenerator()), before_(generator_.graphsafe_get_state()) {
    generator_.graphsafe_set_state(at::cuda::detail::createCUDAGenerator(generator_.device().index()));
  }
  ~SpareGeneratorState() { generator_.graphsafe_set_state(before_); }
  SpareGeneratorState(const SpareGeneratorState&) = delete;
  SpareGeneratorState& operator=(const SpareGeneratorState&) = delete;

 private:
  at::Generator generator_;
  const at::Generator before_;
};

// Graphs that share a pool reuse each other's memory, which is why they must not run at the same time.
class CudaDeviceGraph : public DeviceGraph {
 public:
  explicit CudaDeviceGraph(c10::MempoolId_t pool) : pool_(pool) {}

  c10::MempoolId_t pool() const { return pool_; }

  void record(const std::function<void()>& work) override {
    const SpareGeneratorState spare;
    // Thread-local mode: other threads of this process keep pinning memory (the data loader), which global mode
    // forbids.
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (const std::exception&) {
        // The first exception is the cause; this one only follows from it.
      }
      throw;
    }
    graph_.capture_end();
  }

  void replay() override { graph_.replay(); }

 private:
  const c10::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<DeviceGraph> make_device_graph(const DeviceGraph* other) {
  const auto* shared = dynamic_cast<const CudaDeviceGraph*>(other);
  return std::make_unique<CudaDeviceGraph>(shared ? shared->pool() : at::cuda::graph_pool_handle());
}

}  // namespace megalith::train
