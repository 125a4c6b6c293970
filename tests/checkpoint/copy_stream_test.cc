#include "megalith/checkpoint/copy_stream.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace megalith::checkpoint {
namespace {

// A device that only writes down what it is told, in order, whichever thread tells it.
class Notes {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

Notes& notes() {
  static Notes all;
  return all;
}

constexpr c10::DeviceType kNoted = c10::DeviceType::PrivateUse1;
constexpr c10::StreamId kCompute = 0, kPool = 7;

class NotingGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kNoted; }
  c10::Device exchangeDevice(c10::Device device) const override { return std::exchange(current(), device); }
  c10::Device getDevice() const override { return current(); }
  void setDevice(c10::Device device) const override {
    notes().add(fmt::format("device {}", static_cast<int>(device.index())));
    current() = device;
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current() = device; }
  c10::Stream getStream(c10::Device device) const override { return noted(device, stream()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return noted(device, kPool); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    notes().add(fmt::format("use stream {}", to.id()));
    return noted(to.device(), std::exchange(stream(), to.id()));
  }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new int(++events());
    notes().add(fmt::format("record event {} on stream {}", *static_cast<int*>(*event), on.id()));
  }
  void block(void* event, const c10::Stream& on) const override {
    notes().add(fmt::format("stream {} waits for event {}", on.id(), *static_cast<int*>(event)));
  }
  void synchronizeEvent(void* event) const override {
    notes().add(fmt::format("host waits for event {}", *static_cast<int*>(event)));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<int*>(event); }
  c10::DeviceIndex deviceCount() const noexcept override { return 4; }

  static int& events() {
    static int count = 0;
    return count;
  }

 private:
  static c10::Stream noted(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
  static c10::Device& current() {
    thread_local c10::Device device(kNoted, 0);
    return device;
  }
  static c10::StreamId& stream() {
    thread_local c10::StreamId id = kCompute;
    return id;
  }
};

const c10::impl::DeviceGuardImplRegistrar registered(kNoted, new NotingGuard);

TEST(CopyStream, CopiesComeBetweenWhatTheCallerQueuedBeforeAndAfter) {
  NotingGuard::events() = 0;
  CopyStream copies(c10::Device(kNoted, 3));
  copies.begin();
  EXPECT_EQ(notes().take(), (std::vector<std::string>{"record event 1 on stream 0"}));
  std::thread([&] {
    copies.enter();
    EXPECT_EQ(notes().take(), (std::vector<std::string>{"device 3", "use stream 7", "stream 7 waits for event 1"}));
    copies.leave();
    EXPECT_EQ(notes().take(), (std::vector<std::string>{"record event 2 on stream 7"}));
  }).join();
  copies.hold_back();  // the host does not wait
  EXPECT_EQ(notes().take(), (std::vector<std::string>{"stream 0 waits for event 2"}));
  std::thread([&] { copies.wait(); }).join();
  EXPECT_EQ(notes().take(), (std::vector<std::string>{"host waits for event 2"}));
}

TEST(CopyStream, HoldsNobodyBackWhenNothingWasCopied) {
  CopyStream copies(c10::Device(kNoted, 0));
  copies.begin();
  notes().take();
  copies.hold_back();
  copies.wait();
  EXPECT_TRUE(notes().take().empty());
}

TEST(CopyStream, DoesNothingOnTheCpu) {
  CopyStream copies(c10::kCPU);
  copies.begin();
  copies.enter();
  copies.leave();
  copies.wait();
  copies.hold_back();
  EXPECT_TRUE(notes().take().empty());
}

}  // namespace
}  // namespace megalith::checkpoint
