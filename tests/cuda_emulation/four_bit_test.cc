// The kernels of 4-bit numbers give the bits of their twins on the CPU.
#include "megalith/ops/quantize/four_bit.h"
#include "megalith/ops/quantize/four_bit_internal.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

const auto kFourBitDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

TEST(FourBitKernels, QuantizeLikeTheCpu) {
  Random random;
  for (const int64_t n : {1, 63, 64, 200, 4097})
    for (const at::ScalarType dtype : kFourBitDtypes)
      for (const bool nf4 : {true, false}) {
        const Tensor x = random({n}, dtype);
        if (n > 128) x.narrow(0, 64, 64).zero_();
        const int64_t bytes = (n + 1) / 2, blocks = (n + 63) / 64;
        const auto cuda = [&](void* stream) {
          const Tensor codes = at::zeros({bytes}, at::kByte), scales = unset({blocks}, at::kFloat);
          quantize_four_bit_cuda(dtype, in(x), n, nf4, codes.mutable_data_ptr<uint8_t>(), floats(scales), stream);
          return Tensors{codes, scales};
        };
        const Tensors actual = in_every_order(cuda, "quantize");
        const Tensor codes = at::zeros({bytes}, at::kByte), scales = unset({blocks}, at::kFloat);
        quantize_four_bit_cpu(dtype, in(x), n, nf4, kFourBitBlock, codes.mutable_data_ptr<uint8_t>(), floats(scales));
        EXPECT_TRUE(same_bits(actual[0], codes)) << n << " numbers, nf4 " << nf4;
        EXPECT_TRUE(same_bits(actual[1], scales)) << n << " numbers, nf4 " << nf4;
      }
}

// Widths for whole words of codes, and others; whole rows and cut ones.
TEST(FourBitKernels, ReadLikeTheCpu) {
  Random random;
  for (const int64_t width : {128, 96, 37})
    for (const bool double_quantization : {true, false})
      for (const at::ScalarType dtype : kFourBitDtypes) {
        const FourBitTensor whole = to_four_bit(random({20, width}), {FourBitKind::kNf4, double_quantization});
        for (const MatrixRectangle& where : {MatrixRectangle{0, 20, 0, width, width},
                                             {5, 9, 0, width, width},
                                             {2, 10, 32, width - 32, width},
                                             {3, 4, 5, 16, width}}) {
          const FourBitMatrix matrix = cut_four_bit(whole, where, at::kCPU);
          const FourBitArrays from = arrays_of(matrix);
          for (const FourBitSlice& slice :
               {FourBitSlice{0, 0, where.rows, where.columns}, FourBitSlice{1, 0, where.rows - 2, where.columns},
                FourBitSlice{0, 3, where.rows, where.columns - 4}}) {
            const auto cuda = [&](void* stream) {
              const Tensor to = unset({slice.rows, slice.columns}, dtype);
              read_four_bit_cuda(from, slice, dtype, out(to), stream);
              return Tensors{to};
            };
            const Tensor expected = unset({slice.rows, slice.columns}, dtype);
            read_four_bit_cpu(from, slice, dtype, out(expected));
            EXPECT_TRUE(same_bits(in_every_order(cuda, "read")[0], expected))
                << width << " columns, rectangle of " << where.rows << " x " << where.columns << " at column "
                << where.first_column << ", slice at column " << slice.column;
          }
        }
      }
}

}  // namespace
}  // namespace megalith::ops
