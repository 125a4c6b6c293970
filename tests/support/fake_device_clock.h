// A device that a test moves by hand: it passes marks when it is told to, in any order, or never.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megalith/base/device_clock.h"

namespace megalith::testing {

// One thread. Marks go to the stream named `current`; `placed` has them in the order in which they were placed.
class FakeDeviceClock : public DeviceClock {
 public:
  struct Mark : DeviceMark {
    explicit Mark(FakeDeviceClock& clock, std::string on) : owner(clock), stream(std::move(on)) {}
    std::optional<int64_t> time_ns() noexcept override { return at; }
    // A device that has failed passes nothing any more; otherwise it catches up.
    void wait() noexcept override {
      ++owner.waits;
      if (!at && !owner.failed) at = owner.now;
    }
    FakeDeviceClock& owner;
    const std::string stream;
    std::optional<int64_t> at;  // set when the device passes it
  };

  std::shared_ptr<DeviceMark> mark() noexcept override {
    if (records_graph) return nullptr;
    placed.push_back(std::make_shared<Mark>(*this, current));
    return placed.back();
  }
  void align() noexcept override { ++aligned; }

  // The device passes the mark with this number at `ns`.
  void pass(size_t number, int64_t ns) { placed.at(number)->at = now = ns; }

  std::vector<std::shared_ptr<Mark>> placed;
  std::string current = "compute";
  int64_t now = 0;             // the device's time
  bool records_graph = false;  // the current stream takes no marks
  bool failed = false;
  int waits = 0, aligned = 0;
};

}  // namespace megalith::testing
