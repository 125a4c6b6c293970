// NCCL on one GPU: a group of one rank goes through the whole backend. (NCCL takes one rank per GPU.)
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

#include "megalith/comm/backend/c10d_backend.h"
#include "megalith/comm/op/stream_marks.h"
#include "megalith/comm/world.h"

namespace megalith::comm {
namespace {

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!nccl_available()) GTEST_SKIP() << "built without CUDA";
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU";
    backend_ = make_nccl_backend({c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::seconds(60), kDevice},
                                 "test", {.high_priority_stream = true, .max_ctas = 4});
  }
  void run(const Op& op) { EXPECT_TRUE(backend_->start(op)->wait_for(std::chrono::seconds(60))); }
  static at::Tensor data(at::ScalarType type) {
    return at::arange(8, at::TensorOptions(at::kFloat).device(kDevice)).to(type);
  }

  inline static const at::Device kDevice{at::kCUDA, 0};
  std::unique_ptr<Backend> backend_;
};

TEST_F(Nccl, CollectivesOfOneRankLeaveTheData) {
  for (auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong}) {
    const at::Tensor input = data(type);
    at::Tensor in_place = input.clone(), output = at::empty_like(input);
    run({.kind = OpKind::kAllReduce, .output = in_place});
    EXPECT_TRUE(at::equal(in_place, input));
    for (auto kind : {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllToAll}) {
      output.zero_();
      run({.kind = kind, .output = output, .input = input});
      EXPECT_TRUE(at::equal(output, input)) << to_string(kind);
    }
    run({.kind = OpKind::kBroadcast, .peer = 0, .output = in_place});
    EXPECT_TRUE(at::equal(in_place, input));
  }
  run({.kind = OpKind::kBarrier});
}

// The recorder marks an operation as done when the device has passed it, and keeps none of its memory.
TEST_F(Nccl, ACompletionHoldsNoTensors) {
  at::Tensor tensor = data(at::kFloat);
  std::shared_ptr<Completion> completion;
  {
    const auto pending = backend_->start({.kind = OpKind::kAllReduce, .output = tensor});
    ASSERT_TRUE(pending->wait_for(std::chrono::seconds(60)));
    ASSERT_TRUE(pending->runs_behind());
    completion = pending->completion();
  }
  (void)tensor.sum().item();  // the device has passed it
  EXPECT_TRUE(completion->done());
}

// A mark is done when the device has come past it, and not before. Words of marks that nobody asks about any more are
// used again, and a late write to one of them does not reach another mark.
TEST_F(Nccl, MarksTellWhereTheDeviceIs) {
  const auto marks = make_stream_marks(kDevice);
  const at::Tensor matrix = at::ones({8192, 8192}, at::TensorOptions(at::kFloat).device(kDevice));
  (void)matrix.mm(matrix).sum().item();  // loads the kernels
  for (int round = 0; round < 3; ++round) {
    at::Tensor product = matrix;
    for (int i = 0; i < 20; ++i) product = matrix.mm(matrix);
    for (int i = 0; i < 100; ++i) (void)marks->mark();
    const auto mark = marks->mark();
    EXPECT_FALSE(mark->done());
    (void)product.sum().item();
    EXPECT_TRUE(mark->done());
  }
}

// Backward runs on a thread of autograd's, which may not have used the device before.
TEST_F(Nccl, AThreadMayMarkBeforeItDoesAnythingElse) {
  const auto marks = make_stream_marks(kDevice);
  std::thread([&] { EXPECT_NO_THROW(marks->mark()); }).join();
}

TEST_F(Nccl, ABarrierIsOverWhenItReturns) {
  const auto pending = backend_->start({.kind = OpKind::kBarrier});
  EXPECT_TRUE(pending->wait_for(std::chrono::seconds(60)));
  EXPECT_TRUE(pending->done());
  EXPECT_FALSE(pending->runs_behind());
}

TEST_F(Nccl, DtypesItDoesNotKnowTravelAsBytes) {
  const at::Tensor input = data(at::kFloat).to(at::kShort);
  at::Tensor output = at::empty_like(input);
  run({.kind = OpKind::kAllGather, .output = output, .input = input});
  EXPECT_TRUE(at::equal(output, input));
}

}  // namespace
}  // namespace megalith::comm
