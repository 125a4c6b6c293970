#include "megalith/comm/store/process_settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Flags.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>

#include "megalith/base/env.h"

C10_DECLARE_int(caffe2_log_level);

namespace megalith::comm {

namespace {

// Levels of c10's log.
constexpr int kLogErrors = 2;
constexpr int kLogFatal = 3;

// Gloo writes to its peers by writev() and expects EPIPE from one that has died: in Python, where it grew up, SIGPIPE
// is ignored. At its default it would end a rank that did nothing wrong, without a word.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

void prepare_c10d(const std::string& backend) {
  const bool nccl = backend == "nccl";
  // c10d's flight recorder is one for the process and not safe when two groups start operations at once, as Gloo's do
  // here while they connect on threads of their own. NCCL's groups start one at a time: there it stays on, and
  // write_flight_record keeps what it has seen.
  if (!nccl) setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  ignore_broken_pipes();
  raise_file_limit();
  // c10d tells of every closed connection, with a stack trace, as a warning; our own messages say it in a line. Its
  // errors come from NCCL's watchdog and say what NCCL has found; Gloo's only repeat what an exception says anyway.
  if (env_string("TORCH_CPP_LOG_LEVEL") || env_string("MEGALITH_LOG_LEVEL") == "debug") return;
  std::atomic_ref(FLAGS_caffe2_log_level).store(nccl ? kLogErrors : kLogFatal);  // ranks may be threads
}

void raise_file_limit() {
  constexpr rlim_t kEnough =
      1 << 20;  // some containers have a hard limit of a billion; programs that loop over it crawl
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void pass_interface_to_nccl() {
  const auto interface = env_string("MEGALITH_SOCKET_IFNAME");
  // NCCL takes a name as a prefix; "=" asks for exactly this one.
  if (interface) setenv("NCCL_SOCKET_IFNAME", ("=" + *interface).c_str(), /*overwrite=*/0);
}

void use_expandable_segments() {
  if (env_string("PYTORCH_ALLOC_CONF") || env_string("PYTORCH_CUDA_ALLOC_CONF")) return;
  // By the call that works whenever it comes: a variable may have been read when the libraries were loaded, which for
  // ranks of our launcher was before the fork.
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
}

}  // namespace megalith::comm
