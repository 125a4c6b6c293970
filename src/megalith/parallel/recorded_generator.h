// RecordedGenerator: the device's generator while a graph is being recorded, when no draw has a value yet.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace megalith::parallel {

// A place in a recorded pass: so many random numbers after the state that a stream has at the start of the pass.
struct RecordedPlace {
  int64_t stream = 0;  // 0 is the default stream
  uint64_t drawn = 0;  // in the unit of the generator's offset
};

// A place as a byte tensor, in place of the state of a generator, and back.
at::Tensor state_of(const RecordedPlace& place);
RecordedPlace place_of(const at::Tensor& state);

// While it lives, the generator draws relative to a stream. The destructor puts the generator back as it was.
class RecordedGenerator {
 public:
  virtual ~RecordedGenerator() = default;
  virtual RecordedPlace place() const = 0;
  virtual void move_to(const RecordedPlace& place) = 0;
};

// Whether draws on the device can be recorded: on CUDA, with libtorch 2.11 and 2.12. Later versions keep what a
// recorded draw refers to in another place.
bool can_record_draws(at::Device device);

// Takes the generator to the start of its default stream. Kernels find the seed and the offset of each stream in
// `starts`, int64 [streams, 2], on the device. Returns nullptr unless can_record_draws().
using MakeRecordedGenerator =
    std::function<std::unique_ptr<RecordedGenerator>(const at::Generator& generator, const at::Tensor& starts)>;
std::unique_ptr<RecordedGenerator> make_recorded_generator(const at::Generator& generator, const at::Tensor& starts);

}  // namespace megalith::parallel
