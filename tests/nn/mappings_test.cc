// Each row of the table in mappings.h, forward and backward, with whole numbers: results are exact.
#include "megalith/nn/tensor_parallel/mappings.h"

#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kMappingsTokens = 8, kMappingsColumns = 12;

// Rank r's tensor, different on every rank.
at::Tensor of_rank(int rank, at::IntArrayRef shape) { return whole_numbers(shape, 100 + static_cast<uint64_t>(rank)); }

at::Tensor sum_over_ranks(int size, at::IntArrayRef shape) {
  at::Tensor sum = at::zeros(shape);
  for (int r = 0; r < size; ++r) sum += of_rank(r, shape);
  return sum;
}

class Mappings : public ::testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(const TensorParallel&)>& body) const { run_tp({GetParam(), true}, body); }
};

TEST_P(Mappings, GatherTokensWhoseGradientsAreParts) {
  run([](const TensorParallel& tp) {
    const at::Tensor whole = whole_numbers({kMappingsTokens, kMappingsColumns}, 1);
    const at::Tensor x = leaf(between_blocks(whole, tp));
    const at::Tensor y = gather_tokens(x, tp.group);
    expect_identical(y, whole, "all tokens");
    y.backward(of_rank(tp.rank(), y.sizes()));
    expect_identical(x.grad(), between_blocks(sum_over_ranks(tp.size(), y.sizes()), tp), "sum of the own rows");
  });
}

TEST_P(Mappings, GatherTokensWhoseGradientsAreTheSame) {
  run([](const TensorParallel& tp) {
    const at::Tensor whole = whole_numbers({kMappingsTokens, kMappingsColumns}, 1),
                     dy = whole_numbers({kMappingsTokens, kMappingsColumns}, 2);
    const at::Tensor x = leaf(between_blocks(whole, tp));
    const at::Tensor y = gather_tokens(x, tp.group, GatheredGrad::kSame);
    expect_identical(y, whole, "all tokens");
    y.backward(dy);
    expect_identical(x.grad(), between_blocks(dy, tp), "own rows");
  });
}

TEST_P(Mappings, ScatterTokens) {
  run([](const TensorParallel& tp) {
    const at::Tensor x = leaf(whole_numbers({kMappingsTokens, kMappingsColumns}, 1)),
                     dy = whole_numbers({kMappingsTokens, kMappingsColumns}, 2);
    const at::Tensor y = scatter_tokens(x, tp.group);
    expect_identical(y, between_blocks(x, tp), "own rows");
    y.backward(between_blocks(dy, tp));
    expect_identical(x.grad(), dy, "all rows");
  });
}

TEST_P(Mappings, ReduceScatterTokens) {
  run([](const TensorParallel& tp) {
    const at::Tensor x = leaf(of_rank(tp.rank(), {kMappingsTokens, kMappingsColumns})),
                     dy = whole_numbers({kMappingsTokens, kMappingsColumns}, 2);
    const at::Tensor y = reduce_scatter_tokens(x, tp.group);
    expect_identical(y, between_blocks(sum_over_ranks(tp.size(), {kMappingsTokens, kMappingsColumns}), tp),
                     "sum of the own rows");
    y.backward(between_blocks(dy, tp));
    expect_identical(x.grad(), dy, "all rows");
  });
}

TEST_P(Mappings, CopyToRanks) {
  run([](const TensorParallel& tp) {
    const at::Tensor x = leaf(whole_numbers({kMappingsTokens, kMappingsColumns}, 1)),
                     dy = of_rank(tp.rank(), {kMappingsTokens, kMappingsColumns});
    const at::Tensor y = copy_to_ranks(x, tp.group);
    expect_identical(y, x, "the same");
    const at::Tensor given = dy.clone();
    y.backward(given);
    expect_identical(x.grad(), sum_over_ranks(tp.size(), dy.sizes()), "the sum");
    expect_identical(given, dy, "the incoming gradient, which others may hold");
  });
}

TEST_P(Mappings, ReduceFromRanks) {
  run([](const TensorParallel& tp) {
    const at::Tensor value = of_rank(tp.rank(), {kMappingsTokens, kMappingsColumns}),
                     dy = whole_numbers({kMappingsTokens, kMappingsColumns}, 2);
    const at::Tensor x = leaf(value);
    const at::Tensor y = reduce_from_ranks(x, tp.group);
    expect_identical(y, sum_over_ranks(tp.size(), value.sizes()), "the sum");
    expect_identical(x, value, "the input");
    y.backward(dy);
    expect_identical(x.grad(), dy, "the same");
  });
}

TEST_P(Mappings, GatherColumns) {
  run([](const TensorParallel& tp) {
    const at::Tensor whole = whole_numbers({kMappingsTokens, kMappingsColumns}, 1),
                     dy = whole_numbers({kMappingsTokens, kMappingsColumns}, 2);
    const at::Tensor x = leaf(own_columns(whole, tp));
    const at::Tensor y = gather_columns(x, tp.group);
    expect_identical(y, whole, "all columns");
    y.backward(dy);
    expect_identical(x.grad(), own_columns(dy, tp), "own columns");
  });
}

TEST_P(Mappings, NothingIsRecordedWithoutGradients) {
  run([](const TensorParallel& tp) {
    const at::Tensor x = whole_numbers({kMappingsTokens, kMappingsColumns}, 1);
    for (const at::Tensor& y :
         {gather_tokens(x, tp.group), scatter_tokens(x, tp.group), reduce_scatter_tokens(x, tp.group),
          copy_to_ranks(x, tp.group), reduce_from_ranks(x, tp.group), gather_columns(x, tp.group)})
      EXPECT_FALSE(y.requires_grad());
  });
}

TEST_P(Mappings, TokensThatDoNotDivideAreRefused) {
  if (GetParam() == 1) return;
  run([](const TensorParallel& tp) {
    for (const auto& map : {scatter_tokens, reduce_scatter_tokens}) {
      const std::string message = message_of<InternalError>([&] { map(at::zeros({7, 2}), tp.group); });
      expect_contains(message, "7 tokens cannot be split over the " + std::to_string(tp.size()) + " ranks");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Tp, Mappings, ::testing::Values(1, 2, 4),
                         [](const auto& test) { return "tp" + std::to_string(test.param); });

}  // namespace
}  // namespace megalith::nn
