// Random weights and dropout: the same numbers as on the host.
#include "megalith/ops/kernel/counter_normal.h"
#include "megalith/ops/kernel/counter_normal_internal.h"
#include "megalith/ops/norm_rope/dropout_internal.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

// Every number whose rounding the kernel does not leave to the host has the host's bits, though its logarithm and
// cosine differ in the last ones.
TEST(CudaRandom, CounterNormal) {
  const CounterRows what{
      .key = 12345, .first = 17 * 301 + 5, .rows = 70, .width = 151, .stride = 301, .mean = 0.5, .std = 0.02};
  const Tensor host = at::empty({what.rows, what.width}, at::kFloat);
  fill_counter_normal(host, what.key, {.columns = 301, .first_row = 17, .first_column = 5}, what.mean, what.std);
  constexpr int64_t kMost = 64;
  const auto cuda = [&](void* stream) {
    const Tensor drawn = unset({what.rows, what.width}, at::kFloat), doubtful = at::full({kMost}, -7, at::kLong);
    const Tensor count = at::zeros({1}, at::kInt);
    counter_normal_cuda(what, floats(drawn), numbers(doubtful), kMost, count.mutable_data_ptr<int>(), stream);
    const int64_t found = count.item<int>();
    EXPECT_LE(found, 2);  // among ten thousand
    const Tensor places = doubtful.narrow(0, 0, found);
    drawn.view(-1).index_copy_(0, places, host.view(-1).index_select(0, places));
    return Tensors{drawn};
  };
  EXPECT_TRUE(same_bits(in_every_order(cuda, "normal")[0], host));
}

TEST(CudaRandom, Dropout) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t n : {0, 5, 64, 1003, 4096})
      for (const bool misaligned : {false, true})
        for (const bool with_residual : {false, true})
          for (const double p : {0.0, 0.3}) {
            Random random;
            const Tensor x = random({n}, dtype, misaligned);
            const Tensor residual = with_residual ? random({n}, dtype, misaligned) : Tensor();
            const auto run = [&](bool cuda, void* stream) {
              const Tensor y = unset({n}, dtype, misaligned);
              const DropoutForward args{dtype, n, p, 99, in(x), in(residual), out(y), nullptr};
              cuda ? dropout_forward_cuda(args, stream) : dropout_forward_cpu(args);
              return Tensors{y};
            };
            expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); },
                        fmt::format("{} elements, misaligned {}, residual {}", n, misaligned, with_residual));
          }
}

}  // namespace
}  // namespace megalith::ops
