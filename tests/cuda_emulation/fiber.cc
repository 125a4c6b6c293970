#include "tests/cuda_emulation/fiber.h"

#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#define MEGALITH_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEGALITH_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(MEGALITH_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Keeps the registers that a function must keep on the stack, and goes on with another stack. swapcontext asks the
// operating system for the signal mask each time, which takes far longer than the switch.
asm(R"(
.text
.p2align 4
.globl megalith_switch_stack
.hidden megalith_switch_stack
.type megalith_switch_stack, @function
megalith_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size megalith_switch_stack, .-megalith_switch_stack
)");
extern "C" void megalith_switch_stack(void** save, void* load);
#endif

namespace megalith::cuda_emulation {

namespace {

// Of the last switch.
Fiber* left = nullptr;
Fiber* entered = nullptr;

}  // namespace

void Fiber::begin() {
  finish_switch();
  entered->entry_();
}

void Fiber::finish_switch() {
#if defined(MEGALITH_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(entered->fake_stack_, &left->bottom_, &left->size_);
#endif
}

void Fiber::prepare(std::span<std::byte> stack, void (*entry)()) {
  entry_ = entry;
  bottom_ = stack.data();
  size_ = stack.size();
  fake_stack_ = nullptr;
#if defined(MEGALITH_ADDRESS_SANITIZER)
  __asan_unpoison_memory_region(stack.data(), stack.size());
#endif
#if defined(__x86_64__)
  // Six registers, the address to go to, and an empty word: a function starts 8 bytes off a multiple of 16.
  constexpr size_t kWords = 8;
  auto* top = reinterpret_cast<uint64_t*>(stack.data() + stack.size()) - kWords;
  std::memset(top, 0, kWords * sizeof(uint64_t));
  top[6] = reinterpret_cast<uint64_t>(&Fiber::begin);
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack.data();
  context_.uc_stack.ss_size = stack.size();
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::begin, 0);
#endif
}

void Fiber::switch_to(Fiber& to, [[maybe_unused]] bool last) {
  left = this;
  entered = &to;
#if defined(MEGALITH_ADDRESS_SANITIZER)
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack_, to.bottom_, to.size_);
#endif
#if defined(__x86_64__)
  megalith_switch_stack(&stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&context_, &to.context_);
#endif
  finish_switch();
}

}  // namespace megalith::cuda_emulation
