// Two devices: what the emulation refuses, and that a rank of the second one launches there.
#include "tests/cuda_emulation/devices.h"

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/comm/op/current_device.h"
#include "megalith/ops/kernel/tensor_internal.h"
#include "megalith/ops/update/flat_buffer_internal.h"
#include "megalith/parallel/rank_device.h"
#include "tests/cuda_emulation/emulation.h"
#include "tests/cuda_emulation/sample_kernels.h"

namespace megalith::ops {
namespace {

using cuda_emulation::CurrentDevice;
using cuda_emulation::DeviceMemory;
using cuda_emulation::Stream;

// The emulation as libtorch's CUDA: what ATen's device guards and current streams are made of. Default streams are null
// on every device, as CUDA's are: a launch on one of them lands on the current device.
struct EmulatedCuda final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return at::kCUDA; }
  c10::Device getDevice() const override {
    return {at::kCUDA, static_cast<c10::DeviceIndex>(cuda_emulation::current_device())};
  }
  void setDevice(c10::Device device) const override { cuda_emulation::set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void* getStreamNativeHandle(const c10::Stream /*stream*/) const override { return nullptr; }
  c10::DeviceIndex deviceCount() const noexcept override { return cuda_emulation::kDevices; }
};
C10_REGISTER_GUARD_IMPL(CUDA, EmulatedCuda);

const c10::Device kFirst(at::kCUDA, 0), kSecond(at::kCUDA, 1);

// Floats of a device, as its kernels and as libtorch see them.
struct DeviceFloats {
  explicit DeviceFloats(c10::Device device, std::vector<float> from)
      : values(std::move(from)),
        memory(device.index(), values.data(), values.size() * sizeof(float)),
        tensor(at::for_blob(values.data(), {static_cast<int64_t>(values.size())})
                   .options(at::TensorOptions(at::kFloat).device(device))
                   .target_device(device)
                   .make_tensor()) {}

  std::vector<float> values;
  DeviceMemory memory;
  at::Tensor tensor;
};

template <typename Work>
std::string message_of_error(const Work& work) {
  try {
    work();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// A step of SGD on memory of `device`, launched as operations do it.
void update(c10::Device device) {
  DeviceFloats main(device, std::vector<float>(40, 1.0F)), grad(device, std::vector<float>(40, 2.0F));
  DeviceFloats momentum(device, std::vector<float>(40));
  const UpdateArrays arrays{
      .n = 40, .main = main.values.data(), .grad = grad.values.data(), .first = momentum.values.data()};
  sgd_cuda(arrays, {}, {.lr = 0.25, .grad_scale = 1, .step = 1}, stream_of(main.tensor));
  EXPECT_EQ(main.values, std::vector<float>(40, 0.5F));
}

// ---- What the emulation refuses ----

TEST(Devices, EachThreadStartsOnTheFirst) {
  const CurrentDevice here(1);
  int elsewhere = -1;
  std::thread([&] { elsewhere = cuda_emulation::current_device(); }).join();
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(cuda_emulation::current_device(), 1);
}

TEST(Devices, MemoryOfAnotherDeviceIsAnError) {
  std::vector<float> out(kSampleThreads);
  const DeviceMemory memory(1, out.data(), out.size() * sizeof(float));
  expect_part(message_of_error([&] { neighbours_sample(true, out.data(), nullptr); }),
              "argument 1 has memory of device 1, but the kernel is started on device 0");
  const CurrentDevice second(1);
  neighbours_sample(true, out.data(), nullptr);
  EXPECT_EQ(out[0], 1);
}

// Many kernels get their pointers in structures.
TEST(Devices, MemoryOfAnotherDeviceIsFoundInsideArguments) {
  std::vector<float> out(2 * kSampleThreads);
  const DeviceMemory memory(1, out.data(), out.size() * sizeof(float));
  expect_part(message_of_error([&] { fill_sample(3, out.data() + kSampleThreads, nullptr); }),
              "argument 1 has memory of device 1, but the kernel is started on device 0");
  const CurrentDevice second(1);
  fill_sample(3, out.data() + kSampleThreads, nullptr);
  EXPECT_EQ(out.back(), 3);
}

TEST(Devices, AStreamOfAnotherDeviceIsAnError) {
  std::vector<int> out(kSampleThreads);
  Stream stream{.device = 1};
  expect_part(message_of_error([&] { shuffle_sample(0, out.data(), &stream); }),
              "the stream is of device 1, but the kernel is started on device 0");
}

// ---- What launches check, and what a rank does ----

TEST(Devices, ALaunchChecksThatItsDeviceIsCurrent) {
  const DeviceFloats there(kSecond, std::vector<float>(4));
  const std::string message = message_of_error([&] { stream_of(there.tensor); });
  expect_part(message, "is to run on cuda:1, but the current device of this thread is cuda:0");
  expect_part(message, "ALaunchChecksThatItsDeviceIsCurrent");  // the caller's name
  const CurrentDevice second(1);
  EXPECT_EQ(message_of_error([&] { stream_of(there.tensor); }), "");
  expect_part(message_of_error([&] { update(kFirst); }), "is to run on cuda:0");
}

TEST(Devices, ARankLaunchesOnItsOwnGpu) {
  for (const int local_rank : {0, 1}) {
    const CurrentDevice start(0);  // as a fresh process
    const c10::Device device =
        parallel::enter_device({.gpus = cuda_emulation::kDevices, .local_rank = local_rank, .local_world_size = 2});
    EXPECT_EQ(device, c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(local_rank)));
    EXPECT_EQ(cuda_emulation::current_device(), local_rank);
    update(device);
  }
}

TEST(Devices, OtherThreadsOfARankSayWhereTheyAre) {
  const CurrentDevice second(1);
  const DeviceFloats there(kSecond, std::vector<float>(4));
  std::string before, after;
  std::thread([&] {
    before = message_of_error([&] { stream_of(there.tensor); });
    comm::make_device_current(kSecond);
    after = message_of_error([&] { stream_of(there.tensor); });
  }).join();
  expect_part(before, "the current device of this thread is cuda:0");
  EXPECT_EQ(after, "");
}

TEST(Devices, TheCpuNeedsNoCurrentDevice) {
  comm::make_device_current(at::kCPU);
  EXPECT_EQ(cuda_emulation::current_device(), 0);
  EXPECT_EQ(message_of_error([] { comm::check_device_current(at::kCPU, "a copy"); }), "");
}

}  // namespace
}  // namespace megalith::ops
