// The kernels of 8-bit numbers give the bits of their twins on the CPU.
#include "megalith/ops/quantize/eight_bit.h"

#include <array>

#include "megalith/ops/quantize/eight_bit_internal.h"
#include "tests/cuda_emulation/kernel_case.h"

namespace megalith::ops {
namespace {

// Rows for several blocks of threads, and fewer than one; a row of zeros, and numbers in the middle between codes.
TEST(EightBitKernels, QuantizeLikeTheCpu) {
  Random random;
  for (const int64_t rows : {1, 5, 19})
    for (const int64_t columns : {1, 31, 32, 200}) {
      const Tensor x = random({rows, columns}, at::kHalf);
      if (rows > 4) {
        x[2].zero_();
        x[3].copy_(at::arange(columns).add(0.5).clamp_max(126.5));
        x[3][columns - 1] = 127;
      }
      const auto* from = static_cast<const c10::Half*>(in(x));
      const auto codes_of = [](const Tensor& t) { return static_cast<int8_t*>(out(t)); };
      const auto cuda = [&](void* stream) {
        const Tensor codes = block_of({rows, columns}, at::kChar).fill_(77), scales = unset({rows}, at::kFloat);
        quantize_eight_bit_cuda(from, rows, columns, codes_of(codes), floats(scales), stream);
        return Tensors{codes, scales};
      };
      const Tensors actual = in_every_order(cuda, "quantize");
      const Tensor codes = block_of({rows, columns}, at::kChar).fill_(66), scales = unset({rows}, at::kFloat);
      quantize_eight_bit_cpu(from, rows, columns, codes_of(codes), floats(scales));
      EXPECT_TRUE(same_bits(actual[0], codes)) << rows << " x " << columns;
      EXPECT_TRUE(same_bits(actual[1], scales)) << rows << " x " << columns;
    }
}

// Widths for whole words of codes, and others; slices that begin inside rows.
TEST(EightBitKernels, ReadLikeTheCpu) {
  Random random;
  for (const int64_t width : {128, 96, 37})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const EightBitTensor whole = to_eight_bit(random({20, width}));
      for (const auto& [row, column, rows, columns] :
           {std::array<int64_t, 4>{0, 0, 20, width}, {1, 0, 7, width}, {4, 16, 9, width - 16}, {0, 3, 20, width - 4}})
        for (const bool misaligned : {false, true}) {
          const EightBitSlice slice{.codes = whole.codes.const_data_ptr<int8_t>() + row * width + column,
                                    .scales = whole.scales.const_data_ptr<float>() + row,
                                    .stride = width,
                                    .rows = rows,
                                    .columns = columns};
          const auto cuda = [&](void* stream) {
            const Tensor to = unset({rows, columns}, dtype, misaligned);
            read_eight_bit_cuda(slice, dtype, out(to), stream);
            return Tensors{to};
          };
          const Tensor expected = unset({rows, columns}, dtype);
          read_eight_bit_cpu(slice, dtype, out(expected));
          EXPECT_TRUE(same_bits(in_every_order(cuda, "read")[0], expected))
              << width << " columns, slice of " << rows << " x " << columns << " at column " << column;
        }
    }
}

}  // namespace
}  // namespace megalith::ops
