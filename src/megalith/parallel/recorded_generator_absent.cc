// Compiled only without MEGALITH_CUDA.
#include "megalith/parallel/recorded_generator.h"

namespace megalith::parallel {

bool can_record_draws(at::Device /*device*/) { return false; }

std::unique_ptr<RecordedGenerator> make_recorded_generator(const at::Generator& /*generator*/,
                                                           const at::Tensor& /*starts*/) {
  return nullptr;
}

}  // namespace megalith::parallel
