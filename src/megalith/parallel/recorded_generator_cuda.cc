// RecordedGenerator of CUDA. Compiled only with MEGALITH_CUDA.
//
// While a stream of the device is captured, libtorch's kernels get two addresses and a number from the generator
// (PhiloxCudaState): seed = *seed_extragraph, offset = *offset_extragraph + offset_intragraph. libtorch itself has one
// pair of addresses per generator and fills it before each replay. Here each random stream has a pair, and a fork
// changes the addresses.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <vector>

#include "megalith/parallel/recorded_generator.h"

namespace megalith::parallel {

namespace {

// A template, so that it may be left out where libtorch's states have other members.
template <typename State>
constexpr bool kHoldsAddresses = requires(State& state, const at::Tensor& tensor) {
  state.seed_extragraph_ = tensor;
  state.offset_extragraph_ = tensor;
  state.offset_intragraph_ = uint64_t{};
  state.capturing_ = true;
};

template <typename State>
class CudaRecordedGenerator final : public RecordedGenerator {
 public:
  CudaRecordedGenerator(at::Generator generator, const at::Tensor& starts)
      : generator_(std::move(generator)),
        before_(generator_.graphsafe_get_state()),
        state_(c10::make_intrusive<State>()) {
    for (const at::Tensor& row : starts.unbind(0)) starts_.push_back({row.narrow(0, 0, 1), row.narrow(0, 1, 1)});
    state_->capturing_ = true;
    move_to({});
    generator_.graphsafe_set_state(at::make_generator<at::CUDAGeneratorImpl>(generator_.device().index(), state_));
  }
  ~CudaRecordedGenerator() override { generator_.graphsafe_set_state(before_); }
  CudaRecordedGenerator(const CudaRecordedGenerator&) = delete;
  CudaRecordedGenerator& operator=(const CudaRecordedGenerator&) = delete;

  RecordedPlace place() const override { return {stream_, state_->offset_intragraph_}; }

  void move_to(const RecordedPlace& place) override {
    const Start& start = starts_.at(static_cast<size_t>(place.stream));
    stream_ = place.stream;
    state_->seed_extragraph_ = start.seed;
    state_->offset_extragraph_ = start.offset;
    state_->offset_intragraph_ = place.drawn;
  }

 private:
  struct Start {
    at::Tensor seed, offset;  // [1] each, on the device
  };

  at::Generator generator_;
  const at::Generator before_;
  const c10::intrusive_ptr<State> state_;
  std::vector<Start> starts_;
  int64_t stream_ = 0;
};

template <typename State>
std::unique_ptr<RecordedGenerator> make_for(const at::Generator& generator, const at::Tensor& starts) {
  if constexpr (kHoldsAddresses<State>)
    return std::make_unique<CudaRecordedGenerator<State>>(generator, starts);
  else
    return nullptr;
}

}  // namespace

bool can_record_draws(at::Device device) { return device.is_cuda() && kHoldsAddresses<at::CUDAGeneratorState>; }

std::unique_ptr<RecordedGenerator> make_recorded_generator(const at::Generator& generator, const at::Tensor& starts) {
  if (generator.device().is_cpu()) return nullptr;
  return make_for<at::CUDAGeneratorState>(generator, starts);
}

}  // namespace megalith::parallel
