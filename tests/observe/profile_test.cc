// A profile's arithmetic on made-up intervals, names of kernels as profilers give them, and a profile of some operators
// on the CPU.
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/observe/profile/profile_callback.h"
#include "megalith/observe/profile/profile_report.h"
#include "megalith/observe/profile/profiler.h"
#include "megalith/observe/profile/work_kind.h"
#include "tests/observe/some_run.h"
#include "tests/support/expect.h"

namespace megalith::observe {
namespace {

using testing::expect_contains;
using testing::TempFolder;

TEST(WorkKind, ByTheNamesOfKernels) {
  const std::vector<std::pair<const char*, WorkKind>> kernels{
      {"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", WorkKind::kProducts},
      {"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", WorkKind::kProducts},
      {"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(…)",
       WorkKind::kProducts},
      {"void cublasLt::splitKreduce_kernel<32, 16, int, float>(…)", WorkKind::kProducts},
      {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::bfloat16_t>>(…)",
       WorkKind::kAttention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", WorkKind::kAttention},
      {"fmha_cutlassF_bf16_aligned_64x128_rf_sm80", WorkKind::kAttention},
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", WorkKind::kCommunication},
      {"megalith::comm::(anonymous namespace)::hold(unsigned long const*, long)", WorkKind::kCommunication},
      {"void megalith::ops::(anonymous namespace)::adam_kernel<c10::BFloat16>(…)", WorkKind::kUpdate},
      {"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<…>", WorkKind::kUpdate},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", WorkKind::kElementwise},
      {"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", WorkKind::kElementwise},
      {"void megalith::ops::(anonymous namespace)::gated_forward_kernel<c10::BFloat16>(…)", WorkKind::kElementwise},
      {"Memcpy HtoD (Pinned -> Device)", WorkKind::kCopies},
      {"Memset (Device)", WorkKind::kCopies},
      {"some_kernel_of_tomorrow", WorkKind::kOther},
  };
  for (const auto& [kernel, kind] : kernels) EXPECT_STREQ(name(work_kind(kernel)), name(kind)) << kernel;
}

TEST(ShortKernelName, KeepsWhatTellsKernelsApart) {
  EXPECT_EQ(short_kernel_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
                              "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>)"),
            "vectorized_elementwise_kernel<CUDAFunctor_add>");
  EXPECT_EQ(short_kernel_name("void megalith::ops::(anonymous namespace)::adam_kernel<c10::BFloat16>(float*)"),
            "adam_kernel");
  EXPECT_EQ(short_kernel_name("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
            "ncclDevKernel_AllGather_RING_LL");
  EXPECT_EQ(short_kernel_name("Memcpy DtoH (Device -> Pinned)"), "Memcpy DtoH (Device -> Pinned)");
  EXPECT_EQ(short_kernel_name("nvjet_tst_128x256"), "nvjet_tst_128x256");
  EXPECT_EQ(short_kernel_name("abcdefgh", 6), "abc...");
}

TEST(ShortOperatorName, NamesFunctionsOfOurOwn) {
  EXPECT_EQ(short_operator_name("aten::mm"), "aten::mm");
  EXPECT_EQ(short_operator_name("torch::autograd::CppNode<megalith::nn::(anonymous namespace)::ColumnFunction>"),
            "ColumnFunction (backward)");
  EXPECT_EQ(short_operator_name("autograd::engine::evaluate_function: torch::autograd::CppNode<megalith::ops::Rope>"),
            "engine: Rope (backward)");
  EXPECT_EQ(short_operator_name("abcdefgh", 6), "abc...");
}

//            0    10   20   30   40   50   60   70   80
// products   ██████████          █████
// products                              (idle)     █████
// nccl            ██████████████████████
// copy                 ░░░░░                              also while communication is exposed
TEST(DeviceProfile, SharesIdleTimeAndExposedCommunication) {
  const DeviceProfile profile = profile_device({{"gemm", 0, 20},
                                                {"gemm", 40, 50},
                                                {"ncclDevKernel_AllReduce", 10, 55},
                                                {"Memcpy HtoD", 20, 30},
                                                {"adam_kernel", 70, 80}});
  EXPECT_EQ(profile.window_ns, 80);
  EXPECT_EQ(profile.idle_ns, 15);
  EXPECT_EQ(profile.exposed_ns, 25) << "20 to 40 and 50 to 55: a copy is not computation";
  EXPECT_EQ(profile.of(WorkKind::kProducts), 30);
  EXPECT_EQ(profile.of(WorkKind::kCommunication), 45);
  EXPECT_EQ(profile.of(WorkKind::kUpdate), 10);
  EXPECT_EQ(profile.of(WorkKind::kAttention), 0);
  ASSERT_EQ(profile.kernels.size(), 4U);
  EXPECT_EQ(profile.kernels[0].name, "ncclDevKernel_AllReduce");
  EXPECT_EQ(profile.kernels[1].calls, 2);
  EXPECT_EQ(profile.kernels[1].total_ns, 30);
}

TEST(DeviceProfile, WorkOfOneKindOnTwoStreamsIsBusyOnce) {
  const DeviceProfile profile = profile_device({{"gemm a", 0, 30}, {"gemm b", 10, 20}, {"gemm c", 25, 40}});
  EXPECT_EQ(profile.of(WorkKind::kProducts), 40);
  EXPECT_EQ(profile.idle_ns, 0);
  EXPECT_EQ(profile.exposed_ns, 0);
}

TEST(DeviceProfile, HiddenCommunicationIsNotExposed) {
  const DeviceProfile profile = profile_device({{"nccl", 10, 20}, {"gemm", 0, 15}, {"norm", 15, 30}, {"nccl", 25, 30}});
  EXPECT_EQ(profile.exposed_ns, 0);
  EXPECT_EQ(profile_device({}).window_ns, 0);
}

TEST(DeviceProfile, TablesArePerStep) {
  const std::string text =
      text_of(profile_device({{"gemm", 0, 6'000'000}, {"gemm", 6'000'000, 8'000'000}, {"nccl", 8'000'000, 10'000'000}}),
              2, /*rows=*/1);
  expect_contains(text, "on the device                  5.000    100.0 %");
  expect_contains(text, "matrix products                4.000     80.0 %");
  expect_contains(text, "exposed communication          1.000     20.0 %");
  expect_contains(text, "idle                           0.000      0.0 %");
  expect_contains(text, "gemm  ");
  EXPECT_EQ(text.find("nccl"), std::string::npos) << "one row was asked for";
}

TEST(HostProfile, OwnTimeIsWithoutWhatIsCalled) {
  const auto costs = profile_host({{"add", 1, 30, 40},
                                   {"linear", 1, 0, 100},
                                   {"mm", 1, 10, 30},
                                   {"linear", 2, 0, 5},      // another thread: inside nothing
                                   {"add", 1, 100, 110},     // after linear, not in it
                                   {"linear", 1, 50, 70}});  // calls itself
  ASSERT_EQ(costs.size(), 3U);
  EXPECT_EQ(costs[0].name, "linear");
  EXPECT_EQ(costs[0].calls, 3);
  EXPECT_EQ(costs[0].self_ns, 100 - 10 - 20 + 5);
  EXPECT_EQ(costs[0].total_ns, 105) << "the inner call is part of the outer one";
  EXPECT_EQ(costs[1].self_ns, 20);
  EXPECT_EQ(costs[2].self_ns, 20);
  expect_contains(text_of(costs, 1), "linear");
}

TEST(ProductProfile, SumsKernelsByTheShapeOfTheirOperator) {
  ProfileRecord record;
  // Two products of one shape; the first one is computed in two parts that a second kernel adds.
  record.host.push_back({.name = "aten::mm", .thread = 1, .id = 1, .shapes = {{4, 8}, {8, 2}}});
  record.host.push_back({.name = "aten::mm", .thread = 1, .id = 2, .shapes = {{4, 8}, {8, 2}}});
  record.host.push_back({.name = "aten::addmm", .thread = 1, .id = 3, .shapes = {{2}, {3, 8}, {8, 2}}});
  record.host.push_back({.name = "aten::_grouped_mm", .thread = 1, .id = 4, .shapes = {{6, 8}, {5, 8, 2}, {5}}});
  record.host.push_back({.name = "aten::bmm", .thread = 1, .id = 5, .shapes = {{3, 6, 8}, {3, 8, 2}}});
  record.host.push_back({.name = "aten::add", .thread = 1, .id = 6, .shapes = {{4, 8}, {4, 8}}});
  record.host.push_back({.name = "aten::mm", .thread = 1, .id = 7, .shapes = {{4, 8}, {8, 9}}});  // starts no kernel
  record.host.push_back({.name = "aten::mm", .thread = 1, .id = 0, .shapes = {{4, 8}, {8, 9}}});  // unknown
  record.device = {{"gemm", 0, 30, 1},    {"sum", 30, 40, 1},    {"gemm", 40, 80, 2}, {"gemm", 80, 90, 3},
                   {"grouped", 0, 25, 4}, {"batched", 0, 20, 5}, {"add", 0, 1000, 6}, {"copy", 0, 2000, 0}};
  const auto costs = profile_products(record);
  ASSERT_EQ(costs.size(), 4U);
  EXPECT_EQ(costs[0].what, "mm 4 x 2 x 8");
  EXPECT_EQ(costs[0].calls, 2);
  EXPECT_EQ(costs[0].total_ns, 80);
  EXPECT_EQ(costs[0].flops, 2 * 4 * 2 * 8);
  EXPECT_EQ(costs[1].what, "_grouped_mm 6 x 2 x 8") << "each row multiplies one of the matrices";
  EXPECT_EQ(costs[1].flops, 2 * 6 * 2 * 8);
  EXPECT_EQ(costs[2].what, "bmm 6 x 2 x 8, 3 times");
  EXPECT_EQ(costs[2].flops, 3 * 2 * 6 * 2 * 8);
  EXPECT_EQ(costs[3].what, "addmm 3 x 2 x 8");
  // 256 operations in 80 ns are 3.2e-3 TFLOP/s; a table is per step.
  record.device[0].end_ns = 30'000'000;
  record.host[0].shapes = record.host[1].shapes = {{4000, 8000}, {8000, 2000}};
  const std::string text = text_of(record, /*steps=*/2, /*on_gpu=*/true);
  expect_contains(text, "mm 4000 x 2000 x 8000                                              1      15.000");
  expect_contains(text, "8.5\n");
}

// A loop of four steps, of which the second and the third are profiled.
TEST(Profile, StepsOnTheCpu) {
  const TempFolder folder;
  TraceRecorder trace;
  std::string said;
  ProfileCallback callback(trace, {.first_step = 2, .last_step = 3, .folder = folder / "profile", .rank = 5},
                           [&](const std::string& text) { said = text; });
  SomeRun run;
  for (int step = 0; step < 4; ++step) {
    run.tell(callback, &train::TrainerCallback::on_step_begin);
    {
      const auto span = trace.span({.name = "forward-compute", .microbatch = step, .chunk = 0});
      at::mm(at::ones({8, 8}), at::ones({8, 8}));
    }
    ++run.state.global_step;
    run.tell(callback, &train::TrainerCallback::on_step_end);
  }
  run.end(callback);
  const auto json = nlohmann::json::parse(text_of_file(folder / "profile" / "rank-5.json"));
  std::map<std::string, int> names;
  for (const auto& one : json.at("traceEvents"))
    if (one.at("ph") == "X") ++names[one.at("name").get<std::string>()];
  EXPECT_EQ(names["aten::mm"], 2);
  EXPECT_EQ(names["forward-compute 1.0"], 1);
  EXPECT_EQ(names["forward-compute 2.0"], 1);
  EXPECT_EQ(names["forward-compute 0.0"] + names["forward-compute 3.0"], 0);
  expect_contains(said, "profile of 2 steps on rank 5");
  expect_contains(said, "aten::mm");
  expect_contains(text_of_file(folder / "profile" / "rank-5.txt"), "costliest operators of a step");
}

// Spans outside of a profile call nothing, and a run that ends early writes what it has.
TEST(Profile, ARunThatEndsEarlyWritesWhatItHas) {
  const TempFolder folder;
  TraceRecorder trace;
  ProfileCallback callback(trace, {.first_step = 1, .last_step = 100, .folder = folder / "profile"}, {});
  SomeRun run;
  run.tell(callback, &train::TrainerCallback::on_step_begin);
  at::ones({2});
  ++run.state.global_step;
  run.tell(callback, &train::TrainerCallback::on_step_end);
  EXPECT_FALSE(std::filesystem::exists(folder / "profile" / "rank-0.json"));
  run.end(callback);
  expect_contains(text_of_file(folder / "profile" / "rank-0.txt"), "aten::ones");
}

TEST(Profile, OneAtATime) {
  const TempFolder folder;
  {
    const Profiler first(at::kCPU);
    testing::expect_error<InternalError>([] { const Profiler second(at::kCPU); }, {"two profilers"});
  }
  Profiler again(at::kCPU);  // the first one has ended
  again.stop(folder / "profile.json");
}

}  // namespace
}  // namespace megalith::observe
