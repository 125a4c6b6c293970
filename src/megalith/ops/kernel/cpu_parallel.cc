// Runs CPU kernels on libtorch's own OpenMP threads, found at run time by dlsym. A job is cut into parts of equal
// length; thread i of the runtime takes parts i, i + threads, ... So the same rows go to the same core from kernel to
// kernel, where they may still be in its cache, and sums per part do not depend on timing. The first exception of a
// part is rethrown in the calling thread.
#include "megalith/ops/kernel/cpu_parallel.h"

#include <ATen/Parallel.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ParallelGuard.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>

#if defined(__has_feature)
#define MEGALITH_TSAN __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_THREAD__)
#define MEGALITH_TSAN 1
#else
#define MEGALITH_TSAN 0
#endif
#if MEGALITH_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace megalith::ops {

namespace {

// libtorch's OpenMP runtime, through the interface that libgomp defines and the runtimes of LLVM and Intel also offer.
// Compiling our own code with -fopenmp would bring in a second runtime with Clang, whose idle threads spin on the same
// cores. If no runtime is found (a libtorch with another kind of threads), work runs in the calling thread.
struct OpenMp {
  using ParallelFn = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
  ParallelFn parallel = reinterpret_cast<ParallelFn>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  int (*thread_num)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
  int (*num_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_num_threads"));
  bool found() const { return parallel != nullptr && thread_num != nullptr && num_threads != nullptr; }
};

const OpenMp& open_mp() {
  static const OpenMp runtime;
  return runtime;
}

// Tell the thread sanitizer, which cannot see it, when the runtime hands work over and when it has finished.
void before_handover([[maybe_unused]] void* job) {
#if MEGALITH_TSAN
  __tsan_release(job);
#endif
}
void after_handover([[maybe_unused]] void* job) {
#if MEGALITH_TSAN
  __tsan_acquire(job);
#endif
}

// MKL, the vector math inside libtorch, detects the processor in its first call, and not safely: when several threads
// make that call at once, one may compute with a less accurate kernel (exp off by 4e-5, in about one of a hundred
// processes on 2 cores). One call before there are threads prevents it.
[[maybe_unused]] const bool vector_math_ready = at::exp(at::zeros({16})).defined();

int64_t divup(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Job {
  int64_t n, parts;
  c10::function_ref<void(int64_t, int64_t, int64_t)> body;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;

  // Runs the parts of the calling thread. The runtime may provide fewer threads than there are parts.
  void work() {
    const c10::ParallelGuard guard(true);
    const int64_t length = divup(n, parts);
    const int64_t threads = open_mp().num_threads();
    try {
      for (int64_t part = open_mp().thread_num(); part < parts; part += threads)
        body(part, part * length, std::min(n, (part + 1) * length));
    } catch (...) {
      if (!failed.test_and_set()) error = std::current_exception();
    }
  }
};

}  // namespace

int64_t parallel_parts(int64_t n, int64_t grain) {
  if (n <= 0) return 0;
  const int64_t most = divup(n, std::max<int64_t>(grain, 1));
  if (most == 1 || at::in_parallel_region() || !open_mp().found()) return 1;
  const int64_t parts = std::min<int64_t>(most, at::get_num_threads());
  return divup(n, divup(n, parts));  // no empty part at the end
}

void parallel_for_parts(int64_t n, int64_t parts, c10::function_ref<void(int64_t, int64_t, int64_t)> body) {
  if (parts <= 0) return;
  if (parts == 1) return body(0, 0, n);
  Job job{n, parts, body};
  before_handover(&job);
  const auto work = [](void* data) {
    after_handover(data);
    static_cast<Job*>(data)->work();
    before_handover(data);
  };
  open_mp().parallel(work, &job, 0, 0);
  after_handover(&job);
  if (job.error) std::rethrow_exception(job.error);
}

void parallel_for(int64_t n, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  parallel_for_parts(n, parallel_parts(n, grain),
                     [&](int64_t /*part*/, int64_t begin, int64_t end) { body(begin, end); });
}

}  // namespace megalith::ops
