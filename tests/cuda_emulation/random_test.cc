// Random weights and dropout: the same numbers as on the host.
#include "megalith/ops/kernel/counter_normal.h"
#include "megalith/ops/kernel/counter_normal_internal.h"
#include "megalith/ops/kernel/drawn_seed_internal.h"
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
              const DropoutForward args{dtype, n, p, {.value = 99}, in(x), in(residual), out(y), nullptr};
              cuda ? dropout_forward_cuda(args, stream) : dropout_forward_cpu(args);
              return Tensors{y};
            };
            expect_twin([&](void* stream) { return run(true, stream); }, [&] { return run(false, nullptr); },
                        fmt::format("{} elements, misaligned {}, residual {}", n, misaligned, with_residual));
          }
}

// In a graph the seed is a matter of each replay: kernels compute it from the state that they find in memory.
TEST(CudaRandom, DropoutOfAGraphFindsItsSeedInMemory) {
  EXPECT_EQ(mixed_seed(0, 0), 0xE220A8397B1DCDAF);  // the first number of splitmix64
  const int64_t n = 1003;
  Random random;
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool misaligned : {false, true})
      for (const bool with_residual : {false, true}) {
        const Tensor x = random({n}, dtype, misaligned);
        const Tensor residual = with_residual ? random({n}, dtype, misaligned) : Tensor();
        const auto dropped = [&](const DrawnSeed& seed, bool cuda, void* stream) {
          const Tensor y = unset({n}, dtype, misaligned);
          const DropoutForward args{dtype, n, 0.3, seed, in(x), in(residual), out(y), nullptr};
          cuda ? dropout_forward_cuda(args, stream) : dropout_forward_cpu(args);
          return Tensors{y};
        };
        const Tensor state = at::zeros({2}, at::kLong);
        const DrawnSeed recorded{.seed = numbers(state), .offset = numbers(state) + 1, .drawn = 8};
        for (const int64_t offset : {0, 4, 400}) {
          numbers(state)[0] = -77;
          numbers(state)[1] = offset;
          const DrawnSeed drawn{.value = mixed_seed(static_cast<uint64_t>(-77), static_cast<uint64_t>(offset) + 8)};
          const std::string what =
              fmt::format("offset {}, misaligned {}, residual {}", offset, misaligned, with_residual);
          const Tensors expected = dropped(drawn, /*cuda=*/false, nullptr);
          expect_twin([&](void* stream) { return dropped(recorded, /*cuda=*/true, stream); }, [&] { return expected; },
                      what);
          EXPECT_TRUE(same_bits(dropped(recorded, /*cuda=*/false, nullptr)[0], expected[0])) << what;
        }
      }
}

}  // namespace
}  // namespace megalith::ops
