#include "megalith/run/out_of_memory.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>

#include "megalith/run/resolve/run_shape.h"
#include "tests/support/expect.h"

namespace megalith::run {
namespace {

using testing::expect_contains;

constexpr double kGib = 1 << 30;

MemoryFacts facts(double used_gib) {
  return {.planned = {{"parameters", 2 * kGib}, {"gradients", 4 * kGib}, {"optimizer", 12 * kGib}},
          .used = used_gib * kGib,
          .capacity = 80 * kGib,
          .tokens = 8 * 4096,
          .vocab = 128256,
          .sharers = 4};
}

TEST(OutOfMemory, SaysWhatWasPlannedAndUsed) {
  const std::string text = out_of_memory_text(open_shape({}, 1), facts(79));
  expect_contains(text, "79.0 GiB were in use of 80.0 GiB");
  expect_contains(text, "parameters 2.0 GiB, gradients 4.0 GiB, optimizer 12.0 GiB");
}

TEST(OutOfMemory, NamesTheThreeOptionsThatSaveMost) {
  config::TrainingArguments args;
  args.batch.micro_batch_size = 8;
  args.precision.bf16 = true;
  const std::string many_activations = out_of_memory_text(open_shape(args, 4), facts(79));
  expect_contains(many_activations, "recompute_granularity full");
  expect_contains(many_activations, "per_device_train_batch_size 4");
  expect_contains(many_activations, "optimizer_cpu_offload");
  EXPECT_EQ(many_activations.find("tensor_model_parallel_size"), std::string::npos);
  const std::string few = out_of_memory_text(open_shape(args, 4), facts(27));
  expect_contains(few, "use_distributed_optimizer over 4");
  EXPECT_EQ(few.find("recompute_granularity"), std::string::npos);
}

TEST(OutOfMemory, LeavesOutWhatIsInUse) {
  config::TrainingArguments args;
  args.batch.micro_batch_size = 1;
  args.recompute.granularity = config::RecomputeGranularity::kFull;
  args.optimizer.use_distributed_optimizer = true;
  const std::string text = out_of_memory_text(open_shape(args, 4), facts(79));
  for (const char* used : {"recompute_granularity", "per_device_train_batch_size", "use_distributed_optimizer"})
    EXPECT_EQ(text.find(used), std::string::npos) << used;
}

TEST(OutOfMemory, IsToldFromOtherErrors) {
  const auto found = [](const auto& throws) {
    try {
      throws();
    } catch (const std::exception& error) {
      return is_out_of_memory(error);
    }
    return false;
  };
  EXPECT_TRUE(found([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); }));
  EXPECT_TRUE(found([] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"); }));
  EXPECT_TRUE(found([] { throw std::bad_alloc(); }));
  EXPECT_FALSE(found([] { TORCH_CHECK(false, "CUDA error: an illegal memory access was encountered"); }));
  EXPECT_FALSE(found([] { throw std::runtime_error("CUDA error: out of memory"); }));  // somebody's words
}

TEST(OutOfMemory, OtherErrorsPass) {
  const auto explain = [](const std::function<void()>& work) {
    explain_out_of_memory(
        {}, [] { return facts(79); }, work);
  };
  testing::expect_error<Error>([&] { explain([] { throw std::bad_alloc(); }); }, {"the device is out of memory"});
  testing::expect_error<DataError>([&] { explain([] { throw DataError("line 7"); }); }, {"line 7"});
  explain([] {});
}

}  // namespace
}  // namespace megalith::run
