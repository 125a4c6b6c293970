// Chooses the device of a rank and makes sure that no other rank uses the same GPU.
//
//   GPUs seen   backend        device
//   0           any            CPU
//   1           any            GPU 0: the launcher has shown each rank its own (srun --gpus-per-task=1)
//   n           nccl           GPU LOCAL_RANK; an error if there are fewer GPUs than ranks
//   n           gloo           GPU LOCAL_RANK mod n: several ranks may share one
#include "megalith/parallel/rank_device.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/comm/op/current_device.h"
#include "megalith/comm/world.h"

namespace megalith::parallel {

namespace {

// Returns the machine of this process, as NCCL identifies it.
std::string nccl_machine() {
  if (const auto id = env_string("NCCL_HOSTID")) return *id;
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace

int visible_gpus() {
  if (!comm::nccl_available() || !at::hasCUDA()) return 0;
  return at::detail::getCUDAHooks().deviceCount();
}

c10::Device choose_device(const DeviceQuestion& question) {
  const auto& [gpus, local_rank, local_world_size, settings] = question;
  if (settings.use_cpu || gpus == 0) return at::kCPU;
  const auto gpu = [](int index) { return c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)); };
  if (gpus == 1) return gpu(0);
  if (settings.backend == BackendChoice::kGloo) return gpu(local_rank % gpus);
  check<ConfigError>(
      local_rank < gpus,
      "LOCAL_RANK is {} ({} ranks on this machine) but this rank sees {} GPUs. Start no more ranks than GPUs, or show"
      " each rank one GPU of its own (srun --gpus-per-task=1), or run several ranks on one GPU with --ddp_backend "
      "gloo.",
      local_rank, local_world_size, gpus);
  return gpu(local_rank);
}

c10::Device enter_device(const DeviceQuestion& question) {
  const c10::Device device = choose_device(question);
  comm::make_device_current(device);
  // libtorch's allocator answers questions about memory only after this; the first tensor would come too late.
  if (device.is_cuda() && at::hasCUDA()) at::globalContext().lazyInitDevice(device.type());
  return device;
}

// Ranks on one GPU would also fail in NCCL, but later and with less to go on.
std::optional<std::string> gpu_conflict(const std::string& mine, const std::string& holder, const RankGpu& gpu) {
  if (holder == mine) return std::nullopt;
  return fmt::format(
      "{} and {} use the same GPU: {} ({}) of machine {}. NCCL needs one for each rank. Start no more ranks than GPUs;"
      " let each rank see all GPUs of its machine, or one of its own (srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES set"
      " for each rank); or run several ranks on one GPU with --ddp_backend gloo.",
      holder, mine, gpu.gpu.pci_bus_id, gpu.gpu.uuid, gpu.machine);
}

void claim_gpu(comm::World& world, c10::Device device) {
  if (world.backend() != "nccl") return;
  const std::optional<GpuIdentity> identity = gpu_identity(device);
  if (!identity) return;
  const RankGpu gpu{*identity, nccl_machine()};
  const std::string mine =
      fmt::format("rank {} (LOCAL_RANK {}, process {})", world.rank(), world.place().local_rank, ::getpid());
  // The first rank to write the key owns the GPU; the others read who it is.
  const std::string holder = world.claim(fmt::format("gpu/{}/{}", gpu.machine, gpu.gpu.uuid), mine);
  const auto conflict = gpu_conflict(mine, holder, gpu);
  if (!conflict) return;
  world.report_failure(*conflict);
  throw ConfigError(*conflict);
}

}  // namespace megalith::parallel
