// A turn is a variable under a mutex. A pass that ends gives its turn away for good, so the other one's hand_over()
// returns at once from then on.
#include "megalith/nn/turns.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/comm/op/current_device.h"

namespace megalith::nn {

namespace {

thread_local Turns* current_turns = nullptr;
thread_local Turns::Aside* innermost_aside = nullptr;

// Ends a pass whose partner has failed. Autograd's threads pass on what derives from std::exception.
struct Stopped : std::exception {
  const char* what() const noexcept override { return "the pass that ran together with this one has failed"; }
};

// The device's stream that is current on this thread; std::nullopt on the CPU.
std::optional<c10::Stream> current_stream(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

Turns* Turns::current() { return current_turns; }
Turns::Scope::Scope(Turns* turns) : before_(std::exchange(current_turns, turns)) {}
Turns::Scope::~Scope() { current_turns = before_; }

Turns::Aside::Aside(std::function<void()> leave, std::function<void()> back)
    : leave_(std::move(leave)), back_(std::move(back)), outer_(std::exchange(innermost_aside, this)) {}
Turns::Aside::~Aside() { innermost_aside = outer_; }

Turns::~Turns() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Turns::serve() {
  comm::make_device_current(device_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return leaves_ || job_; });
    if (leaves_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      job_();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    job_ = nullptr;
    end(Pass::kBackward, std::move(error));
  }
}

void Turns::end(Pass pass, std::exception_ptr error) {
  ended_[static_cast<size_t>(pass)] = true;
  if (error && !error_) error_ = std::move(error);
  turn_ = pass == Pass::kForward ? Pass::kBackward : Pass::kForward;
  changed_.notify_all();
}

void Turns::throw_if_stopped() const {
  if (error_) throw Stopped();
}

void Turns::run(const std::function<void()>& forward, const std::function<void()>& backward) {
  std::unique_lock lock(mutex_);
  check(!running_, "two pairs of passes at the same time on one rank");
  running_ = true;
  ended_[0] = ended_[1] = false;
  error_ = nullptr;
  turn_ = Pass::kBackward;
  job_ = [&backward, settings = at::ThreadLocalState(), stream = current_stream(device_)] {
    const at::ThreadLocalStateGuard same_settings(settings);
    std::optional<c10::StreamGuard> same_stream;
    if (stream) same_stream.emplace(*stream);
    backward();
  };
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  changed_.notify_all();
  changed_.wait(lock, [this] { return turn_ == Pass::kForward; });
  std::exception_ptr error;
  if (!error_) {
    lock.unlock();
    try {
      forward();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
  }
  end(Pass::kForward, std::move(error));
  changed_.wait(lock, [this] { return ended_[static_cast<size_t>(Pass::kBackward)]; });
  running_ = false;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// Puts aside the newest change first, and brings it back last.
void Turns::hand_over() {
  std::vector<Aside*> asides;
  for (Aside* aside = innermost_aside; aside != nullptr; aside = aside->outer_) asides.push_back(aside);
  for (const Aside* aside : asides) aside->leave_();
  std::exception_ptr stopped;
  try {
    switch_passes();
  } catch (const Stopped&) {
    stopped = std::current_exception();
  }
  for (const Aside* aside : asides | std::views::reverse) aside->back_();
  if (stopped) std::rethrow_exception(stopped);
}

void Turns::switch_passes() {
  std::unique_lock lock(mutex_);
  if (!running_) return;
  const Pass own = turn_, other = own == Pass::kForward ? Pass::kBackward : Pass::kForward;
  if (!ended_[static_cast<size_t>(other)]) {
    turn_ = other;
    changed_.notify_all();
    changed_.wait(lock, [&] { return turn_ == own; });
  }
  throw_if_stopped();
}

}  // namespace megalith::nn
