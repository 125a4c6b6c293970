// Chooses the device that a rank computes on, and tells the GPUs of a run apart.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace megalith::comm {
class World;
}

namespace megalith::parallel {

// The transport between ranks.
enum class BackendChoice {
  kByDevice,  // NCCL on GPUs, Gloo on the CPU
  kNccl,
  kGloo,
};

// The user's choice.
struct DeviceSettings {
  bool use_cpu = false;  // even if there are GPUs
  BackendChoice backend = BackendChoice::kByDevice;
};

// Facts that a rank knows before it chooses its device.
struct DeviceQuestion {
  int gpus = 0;  // visible to this process and usable by this build
  int local_rank = 0;
  int local_world_size = 1;
  DeviceSettings settings{};
};

// Chooses a device by this rule:
//   no GPU, or use_cpu   the CPU
//   one visible GPU      that one, whatever LOCAL_RANK is: srun --gpus-per-task=1, wrappers that set
//                        CUDA_VISIBLE_DEVICES, Ray and Kubernetes show each rank its own as number 0. claim_gpu finds
//                        out whether it really is its own.
//   several              the one with index LOCAL_RANK
// With Gloo, ranks share GPUs: LOCAL_RANK modulo their number. Otherwise a LOCAL_RANK beyond them is a ConfigError.
c10::Device choose_device(const DeviceQuestion& question);

// Returns the number of GPUs that this process sees; 0 in a build without CUDA.
int visible_gpus();

// Chooses the device, starts libtorch's part of it, and makes it current for this thread.
c10::Device enter_device(const DeviceQuestion& question);

// A GPU as it is known outside this process.
struct GpuIdentity {
  std::string uuid;        // "GPU-8d1fd5d2-…": differs between any two GPUs, and between the parts of one (MIG)
  std::string pci_bus_id;  // "0000:1b:00.0", as in /sys/bus/pci/devices
};
// Returns std::nullopt for the CPU, and if the driver does not say.
std::optional<GpuIdentity> gpu_identity(c10::Device device);

// A GPU and the machine that NCCL assigns it to: NCCL_HOSTID if set, else the host name.
struct RankGpu {
  GpuIdentity gpu;
  std::string machine;
};

// Returns why two ranks may not run together; std::nullopt if `holder`, which has claimed the GPU, is `mine` itself.
std::optional<std::string> gpu_conflict(const std::string& mine, const std::string& holder, const RankGpu& gpu);

// Claims this rank's GPU among all ranks of an NCCL run. Throws ConfigError, and tells the other ranks, if another has
// it: NCCL would refuse two ranks on one GPU too, but only in the first collective and without naming them. Processes
// that share a GPU on purpose have different NCCL_HOSTIDs, which makes them separate machines for NCCL and here. No
// effect with another backend.
void claim_gpu(comm::World& world, c10::Device device);

}  // namespace megalith::parallel
