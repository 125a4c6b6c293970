// Operations of c10d that end at an awkward moment.
#include "megalith/comm/backend/c10d_backend.h"

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "megalith/base/error.h"
#include "megalith/comm/op/backend.h"
#include "tests/support/expect.h"

namespace megalith::comm {
namespace {

// Ends, well or with `failure`, when the first wait for it has just run out of time.
class LateWork : public c10d::Work {
 public:
  explicit LateWork(std::exception_ptr failure) : failure_(std::move(failure)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (waits_++ > 0) return Work::wait(timeout);
    finish(failure_);
    throw std::runtime_error("Operation timed out!");
  }

 private:
  const std::exception_ptr failure_;
  int waits_ = 0;
};

class LateBackend : public c10d::Backend {
 public:
  explicit LateBackend(std::exception_ptr failure) : Backend(0, 2), failure_(std::move(failure)) {}

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<LateWork>(failure_);
  }

 private:
  const std::exception_ptr failure_;
};

std::shared_ptr<PendingOp> start_late(std::exception_ptr failure) {
  const auto backend = wrap_c10d(c10::make_intrusive<LateBackend>(std::move(failure)), at::kCPU);
  return backend->start({.kind = OpKind::kAllReduce, .output = at::zeros({4})});
}

// A wait goes by slices of half a second: an operation that ends when a slice has just run out has not failed.
TEST(C10dBackend, AnOperationMayEndBetweenTwoSlicesOfAWait) {
  EXPECT_TRUE(start_late(nullptr)->wait_for(std::chrono::seconds(10)));
}

TEST(C10dBackend, AFailureBetweenTwoSlicesIsTheOneThatIsTold) {
  const auto pending = start_late(std::make_exception_ptr(std::runtime_error("connection reset by peer")));
  EXPECT_EQ(testing::error_of<CommError>([&] { pending->wait_for(std::chrono::seconds(10)); }),
            "connection reset by peer");
}

// Operations that announce themselves to libtorch's profiler, as Gloo's do.
class AnnouncedBackend : public c10d::Backend {
 public:
  AnnouncedBackend() : Backend(0, 2) {}

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<c10d::Work>(0, c10d::OpType::ALLREDUCE, "announced");
  }
};

// Gloo reports the end of an operation on a thread of its own, which may be after the end of a profile: to a profiler
// that is gone.
TEST(C10dBackend, GlooTellsAProfilerNothing) {
  static thread_local int seen = 0;  // a callback of libtorch has no other way to the test
  seen = 0;
  const at::CallbackHandle callback =
      at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
        seen += std::string_view(call.name()) == "announced" ? 1 : 0;
        return std::unique_ptr<at::ObserverContext>();
      }));
  std::vector<at::Tensor> none;
  c10::make_intrusive<AnnouncedBackend>()->allreduce(none, {});
  EXPECT_EQ(seen, 1) << "the callback does not see c10d's operations: this test shows nothing";
  wrap_c10d(c10::make_intrusive<AnnouncedBackend>(), at::kCPU)
      ->start({.kind = OpKind::kAllReduce, .output = at::zeros({4})});
  EXPECT_EQ(seen, 1);
  at::removeCallback(callback);
}

}  // namespace
}  // namespace megalith::comm
