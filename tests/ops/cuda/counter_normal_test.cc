// Normally distributed numbers by counter: the same bits as on the host, for any rectangle of a matrix.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/ops/kernel/counter_normal.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

// The same bits as on the host, of any rectangle.
TEST_P(CudaKernel, CounterNormalsHaveTheBitsOfTheCpu) {
  const CountedRectangle where{.columns = 3001, .first_row = 17, .first_column = 5};
  const Tensor cpu = at::empty({700, 1501}, GetParam()), cuda = at::empty({700, 1501}, cpu.options().device(at::kCUDA));
  fill_counter_normal(cpu, 12345, where, 0.5, 0.02);
  fill_counter_normal(cuda, 12345, where, 0.5, 0.02);
  EXPECT_TRUE(at::equal(cuda.cpu(), cpu));
}

}  // namespace
}  // namespace megalith::ops
