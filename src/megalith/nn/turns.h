// Turns: two passes of a rank, the forward of one micro-batch and the backward of another, that alternate.
//
// Each pass hands over when it has started an exchange and would wait for it. So the other one computes meanwhile:
//
//   backward  ████ start ─┐        ┌─ wait ████ start ─┐        ┌─ wait ████
//   forward               └─ ████ start ─┘             └─ wait ████ start ─┘
//
// Exactly one of them runs at any time, and only the places at which they hand over decide which. So all ranks that run
// the same layers start their collectives in the same order, and nothing that the passes share needs a lock. The
// backward pass has a thread of its own for its call of autograd, but no layer knows about that.
#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace megalith::nn {

// One per rank. run() is called by the rank's thread; hand_over() by the pass whose turn it is, on any thread.
class Turns {
 public:
  // `device` is that of the rank; its current stream serves both passes.
  explicit Turns(c10::Device device) : device_(device) {}
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Runs both passes to their ends: `backward`, which begins, on a thread of this object with the caller's thread-local
  // settings, `forward` on the calling thread. If one throws, the other one is ended at its next hand_over(), and the
  // exception is passed on.
  void run(const std::function<void()>& forward, const std::function<void()>& backward);

  // Lets the other pass run until it hands over or ends. Does nothing if that has ended, or outside of run(). Throws if
  // the other pass has failed; the exception must leave the pass.
  void hand_over();

  // Returns the turns that the forward pass of this thread takes part in, so that its layers can keep them for their
  // backward; nullptr if there are none.
  static Turns* current();
  // Makes `turns`, which may be nullptr, current for this thread.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(Turns* turns);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Turns* const before_;
  };

  // While it lives, a hand_over() on this thread calls `leave` before the other pass runs and `back` afterwards: for
  // state of the rank that a pass has changed for itself. They nest.
  class [[nodiscard]] Aside {
   public:
    Aside(std::function<void()> leave, std::function<void()> back);
    ~Aside();
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    friend class Turns;
    const std::function<void()> leave_, back_;
    Aside* const outer_;
  };

 private:
  enum class Pass { kForward, kBackward };

  void serve();  // the thread's loop
  void switch_passes();
  // Ends a pass, with std::current_exception() if it has failed, and gives the turn to the other one. Requires mutex_.
  void end(Pass pass, std::exception_ptr error);
  void throw_if_stopped() const;  // requires mutex_

  const c10::Device device_;
  std::thread thread_;  // started by the first run()
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::function<void()> job_;  // the backward pass until it ends
  bool running_ = false;       // inside run()
  bool leaves_ = false;        // the thread has to end
  bool ended_[2]{};            // by pass
  Pass turn_ = Pass::kBackward;
  std::exception_ptr error_;  // the first error of either pass
};

}  // namespace megalith::nn
