// Buffers of several dtypes are reduced by one group, so that their buckets must start in one order on all ranks,
// whatever the order in which gradients arrive.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/optim/distributed_data_parallel.h"
#include "tests/support/run_ranks.h"

namespace megalith::optim {
namespace {

using testing::Rank;
using testing::run_ranks;

// The second rank does not use the last parameter in the second step, so that only finish_grad_sync completes it there.
TEST(BucketOrder, IsTheSameOnRanksThatUseOtherParameters) {
  run_ranks(2, [](const Rank& rank) {
    const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = rank.size}));
    nn::ParameterSet set(at::kFloat, at::kCPU);
    std::vector<nn::Parameter*> parameters;
    for (const auto& [name, dtype] : {std::pair("a", at::kFloat), std::pair("b", at::kBFloat16)}) {
      // Sizes that differ: reductions in another order would not fit each other.
      const int64_t size = dtype == at::kFloat ? 100 : 3000;
      parameters.push_back(&nn::ParameterScope(set).add({.name = std::string(name), .dtype = dtype}, {size}));
    }
    DistributedDataParallel ddp(parameters, {.overlap_grad_reduce = true, .per_token_loss = true}, context);
    ASSERT_EQ(ddp.buffers().size(), 2U);
    for (int step = 1; step <= 3; ++step) {
      ddp.zero_grad();
      const bool left_out = step == 2 && rank.rank == 1;
      at::Tensor loss = parameters[0]->value.sum();
      if (!left_out) loss = loss + parameters[1]->value.to(at::kFloat).sum();
      loss.backward();
      ddp.finish_grad_sync();
      EXPECT_EQ(parameters[0]->grad.main_grad.min().item<double>(), 2);
      EXPECT_EQ(parameters[1]->grad.main_grad.max().item<double>(), step == 2 ? 1 : 2);
    }
  });
}

}  // namespace
}  // namespace megalith::optim
