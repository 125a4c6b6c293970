#include "megalith/train/faults/replica_check.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/model/model_support.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

// Returns the message on rank 0 after `disturb` has changed a parameter on one rank; "" when all agree.
std::string told(const std::string& family, TrainerCase how, int rank,
                 const std::function<void(nn::Parameter&)>& disturb, bool expert = false) {
  std::string message;
  run_trainer_ranks(golden_folder(family), how, [&](const TrainerRank& r) {
    for (nn::Parameter* p : r.models.parameters())
      if (r.rank.rank == rank && p->spec.expert == expert) {
        const at::NoGradGuard no_grad;
        disturb(*p);
        break;
      }
    try {
      train::check_replicas(r.models, 40);
    } catch (const CommError& error) {
      if (r.rank.rank == 0) message = error.what();
    }
  });
  return message;
}

TEST(ReplicaCheck, EqualReplicasPass) {
  EXPECT_EQ(told("llama", {.tp = 2, .dp = 2}, -1, {}), "");
  EXPECT_EQ(told("mixtral", {.dp = 2, .cp = 2}, -1, {}), "");
}

TEST(ReplicaCheck, AFlippedBitIsNamedWithParameterAndRanks) {
  const std::string message = told("llama", {.dp = 3}, 2, [](nn::Parameter& p) {
    p.value.flatten().view(at::kInt)[5].bitwise_xor_(1);  // the lowest bit
  });
  EXPECT_NE(message.find("after step 40"), std::string::npos) << message;
  EXPECT_NE(message.find("ranks 0 and 1"), std::string::npos) << message;
  EXPECT_NE(message.find("on rank 2"), std::string::npos) << message;
  EXPECT_NE(message.find("weight"), std::string::npos) << message;
}

TEST(ReplicaCheck, NumbersInEachOthersPlaceAreSeen) {
  EXPECT_NE(told("llama", {.dp = 2}, 1,
                 [](nn::Parameter& p) {
                   const at::Tensor flat = p.value.flatten();
                   const at::Tensor first = flat[0].clone();
                   flat[0].copy_(flat[1]);
                   flat[1].copy_(first);
                 }),
            "");
}

TEST(ReplicaCheck, ExpertsAreComparedAmongTheirOwnReplicas) {
  TrainerCase how{.dp = 4};
  how.args.parallel.ep = 2;
  const auto disturb = [](nn::Parameter& p) { p.value.flatten()[0].add_(1); };
  EXPECT_NE(told("mixtral", how, 2, disturb, /*expert=*/true), "");
  EXPECT_EQ(told("mixtral", how, 1, disturb, /*expert=*/true), "") << "rank 0 has other experts than rank 1";
}

}  // namespace
}  // namespace megalith::testing
