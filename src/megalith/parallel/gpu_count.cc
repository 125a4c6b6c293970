// Counts GPUs without starting CUDA: a launcher that forks its ranks must not have touched the driver. Device files
// give an upper bound at once; the exact number costs a child process.
#include "megalith/parallel/gpu_count.h"

#include <ATen/Context.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/launch/launcher.h"
#include "megalith/comm/world.h"

namespace megalith::parallel {

namespace {

namespace fs = std::filesystem;

// "nvidia" and digits only: nvidiactl and nvidia-uvm are not GPUs.
bool is_gpu_file(const std::string& name) {
  constexpr std::string_view kBeginning = "nvidia";
  return name.starts_with(kBeginning) && name.size() > kBeginning.size() &&
         std::all_of(name.begin() + kBeginning.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Asks the driver in a child process, since CUDA does not survive a later fork; std::nullopt if that gives no answer.
std::optional<int> ask_driver() {
  constexpr int kMost = 254, kNoAnswer = 255;
  const pid_t child = ::fork();
  if (child < 0) return std::nullopt;
  if (child == 0) {
    int count = kNoAnswer;
    try {
      count = std::min<int>(at::detail::getCUDAHooks().deviceCount(), kMost);
    } catch (...) {
      // The ranks will report the error.
    }
    ::_exit(count);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return std::nullopt;
  if (!WIFEXITED(status) || WEXITSTATUS(status) == kNoAnswer) return std::nullopt;
  return WEXITSTATUS(status);
}

}  // namespace

std::optional<int> most_gpus(const fs::path& devices, const std::optional<std::string>& visible) {
  std::error_code failed;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(devices, failed))
    if (is_gpu_file(entry.path().filename().string())) ++files;
  if (files == 0) return std::nullopt;
  if (!visible) return files;
  // CUDA_VISIBLE_DEVICES=0,1 names two; names of missing GPUs make this an upper bound.
  return std::min(files, static_cast<int>(std::count(visible->begin(), visible->end(), ',')) + 1);
}

fs::path gpu_device_folder() { return env_string("MEGALITH_DEVICE_DIR").value_or("/dev"); }

std::optional<std::string> usable_gpus(const fs::path& devices, const std::optional<std::string>& visible) {
  // CUDA's own rules: the first entry that is not a GPU ends the list.
  if (visible && (visible->empty() || visible->starts_with('-') || *visible == "NoDevFiles")) return std::nullopt;
  const std::optional<int> gpus = most_gpus(devices, visible);
  if (!gpus) return std::nullopt;
  return fmt::format("{} NVIDIA GPU{}", *gpus, *gpus == 1 ? "" : "s");
}

void warn_of_unused_gpus(const DeviceSettings& settings) {
  if (settings.use_cpu || comm::nccl_available()) return;
  const auto gpus = usable_gpus(gpu_device_folder(), env_exact("CUDA_VISIBLE_DEVICES"));
  if (!gpus) return;
  log_warning(
      "this build of megalith is for the CPU and leaves {} of this machine unused. `make build` builds for GPUs where"
      " nvcc and a CUDA libtorch are found, and says what is missing otherwise; --use_cpu true runs on the CPU without"
      " this line.",
      *gpus);
}

// The cheap upper bound settles most cases; only a request above it may need the driver, which is slow to start.
void check_gpus_for(int ranks, const DeviceSettings& settings) {
  if (settings.use_cpu || settings.backend == BackendChoice::kGloo || !comm::nccl_available()) return;
  if (comm::nccl_host_of_rank(env_string("NCCL_HOSTID"), 0)) return;  // ranks share GPUs on purpose
  const std::optional<int> most = most_gpus(gpu_device_folder(), env_string("CUDA_VISIBLE_DEVICES"));
  if (!most || ranks <= *most) return;
  const std::optional<int> gpus = ask_driver();
  if (!gpus || *gpus == 0) return;  // ranks without a GPU run on the CPU
  check<ConfigError>(ranks <= *gpus,
                     "{} ranks are to run on this machine, which has {} GPU{}: start no more ranks than GPUs, or run"
                     " several on one GPU with --ddp_backend gloo, or on the CPU with --use_cpu",
                     ranks, *gpus, *gpus == 1 ? "" : "s");
}

}  // namespace megalith::parallel
