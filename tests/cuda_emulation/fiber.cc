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

// megalith_switch_stack puts the registers that a function must preserve onto the stack and continues on another stack.
// swapcontext, which other architectures use, asks the operating system for the signal mask each time, and that takes
// far longer than the switch.
#if defined(__x86_64__)
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
#elif defined(__aarch64__)
// The address to continue at and the link register are the same but for a new fiber, whose link register is 0: there
// the stack ends for an unwinder.
asm(R"(
.text
.p2align 4
.globl megalith_switch_stack
.hidden megalith_switch_stack
.type megalith_switch_stack, %function
megalith_switch_stack:
  sub sp, sp, #176
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp d8, d9, [sp, #80]
  stp d10, d11, [sp, #96]
  stp d12, d13, [sp, #112]
  stp d14, d15, [sp, #128]
  stp x29, x30, [sp, #144]
  str x30, [sp, #160]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp d8, d9, [sp, #80]
  ldp d10, d11, [sp, #96]
  ldp d12, d13, [sp, #112]
  ldp d14, d15, [sp, #128]
  ldp x29, x30, [sp, #144]
  ldr x9, [sp, #160]
  add sp, sp, #176
  ret x9
.size megalith_switch_stack, .-megalith_switch_stack
)");
#endif
#if !defined(MEGALITH_FIBER_CONTEXT)
extern "C" void megalith_switch_stack(void** save, void* load);
#endif

namespace megalith::cuda_emulation {

namespace {

// The fibers of the last switch.
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
#if !defined(MEGALITH_FIBER_CONTEXT)
#if defined(__x86_64__)
  // Six registers, the address to go to, and an empty word: a function starts 8 bytes off a multiple of 16.
  constexpr size_t kWords = 8, kEntry = 6;
#else
  // Ten registers, eight of floating point, frame pointer and link register, the address to go to, and an empty word:
  // the stack pointer stays a multiple of 16.
  constexpr size_t kWords = 22, kEntry = 20;
#endif
  auto* top = reinterpret_cast<uint64_t*>(stack.data() + stack.size()) - kWords;
  std::memset(top, 0, kWords * sizeof(uint64_t));
  top[kEntry] = reinterpret_cast<uint64_t>(&Fiber::begin);
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
#if !defined(MEGALITH_FIBER_CONTEXT)
  megalith_switch_stack(&stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&context_, &to.context_);
#endif
  finish_switch();
}

}  // namespace megalith::cuda_emulation
