// Part of every executable of a sanitizer build: what the sanitizers shall overlook, because libtorch and OpenMP are
// not instrumented. Our own code has no entry here; a new one says which library call is meant and why it is harmless.

// The runtime looks these names up; each sanitizer calls only its own.
extern "C" {

const char* __asan_default_options();
const char* __ubsan_default_options();
const char* __lsan_default_suppressions();
const char* __tsan_default_options();
const char* __tsan_default_suppressions();

const char* __asan_default_options() { return "strict_string_checks=1:detect_stack_use_after_return=1"; }

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

const char* __lsan_default_suppressions() {
  // Registries and thread pools that libtorch makes once and never frees. Not `leak:libtorch_cpu`: the stack of every
  // tensor passes through it, so our own leaks would go unseen.
  return "leak:libgomp.so\n"
         "leak:libcupti.so\n"
         "leak:libcudart.so\n";
}

const char* __tsan_default_options() {
  // A report needs one instrumented side to be ours; libtorch's inlined atomics make the second stack worth a long
  // history.
  return "history_size=4:second_deadlock_stack=1:ignore_noninstrumented_modules=0";
}

const char* __tsan_default_suppressions() {
  // Locks and barriers inside these libraries are not seen, so what they guard looks like a race.
  return "race:libtorch_cpu.so\n"
         "race:libc10.so\n"
         "race:libgomp.so\n"
         "called_from_lib:libgomp.so\n"
         "mutex:libtorch_cpu.so\n"
         "deadlock:libtorch_cpu.so\n"
         "thread:libtorch_cpu.so\n"
         "signal:libtorch_cpu.so\n";
}

}  // extern "C"
