// Threads of control that take turns on one OS thread.
#pragma once

#include <cstddef>
#include <span>

#if !defined(__x86_64__) && !defined(__aarch64__)
#define MEGALITH_FIBER_CONTEXT 1  // the C library switches, slowly
#include <ucontext.h>
#endif

namespace megalith::cuda_emulation {

// One that is not prepared stands for the running code: it is what the others switch back to.
class Fiber {
 public:
  // The next switch to it calls `entry`, which never returns, on `stack`. What ran there before is forgotten.
  void prepare(std::span<std::byte> stack, void (*entry)());
  // Called by the running fiber; comes back when somebody switches to it. `last`: nobody will.
  void switch_to(Fiber& to, bool last = false);

 private:
  static void begin();
  static void finish_switch();

  void (*entry_)() = nullptr;
#if defined(MEGALITH_FIBER_CONTEXT)
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;  // place of its saved registers
#endif
  // For the address sanitizer, which has to know on which stack it is.
  const void* bottom_ = nullptr;
  size_t size_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace megalith::cuda_emulation
