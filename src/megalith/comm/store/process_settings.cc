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

// Gloo writes to its peers with writev() and expects EPIPE from one that has died: in Python, where it is normally
// used, SIGPIPE is ignored. With the default action it would silently end a rank that did nothing wrong.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

// Uses the call, which works at any time: an environment variable may have been read when the libraries were loaded,
// which for ranks of our launcher was before the fork.
void set_expandable_segments(bool on) {
  if (env_string("PYTORCH_ALLOC_CONF") || env_string("PYTORCH_CUDA_ALLOC_CONF")) return;
  c10::CachingAllocator::setAllocatorSettings(on ? "expandable_segments:True" : "expandable_segments:False");
}

}  // namespace

void prepare_c10d(const std::string& backend) {
  const bool nccl = backend == "nccl";
  // c10d has one flight recorder per process, which is not safe when two groups start operations at once, as Gloo's do
  // here while they connect on their own threads. NCCL's groups start one at a time: there it stays on, and
  // write_flight_record saves its contents.
  if (!nccl) setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  ignore_broken_pipes();
  raise_file_limit();
  // c10d reports every closed connection as a warning with a stack trace; our own messages say it in one line. Its
  // errors come from NCCL's watchdog and say what NCCL found; Gloo's only repeat what an exception says anyway.
  if (env_string("TORCH_CPP_LOG_LEVEL") || env_string("MEGALITH_LOG_LEVEL") == "debug") return;
  std::atomic_ref(FLAGS_caffe2_log_level).store(nccl ? kLogErrors : kLogFatal);  // ranks may be threads
}

void raise_file_limit() {
  constexpr rlim_t kEnough = 1 << 20;  // some containers allow a billion, and programs that loop over the limit crawl
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void pass_interface_to_nccl() {
  const auto interface = env_string("MEGALITH_SOCKET_IFNAME");
  // NCCL treats a name as a prefix; "=" asks for an exact match.
  if (interface) setenv("NCCL_SOCKET_IFNAME", ("=" + *interface).c_str(), /*overwrite=*/0);
}

void keep_nccl_buffers_in_graphs() { setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0); }

void use_expandable_segments() { set_expandable_segments(true); }
void use_plain_segments() { set_expandable_segments(false); }

}  // namespace megalith::comm
