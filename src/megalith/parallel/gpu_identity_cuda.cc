// Compiled only with MEGALITH_CUDA.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "megalith/base/text.h"
#include "megalith/parallel/rank_device.h"

namespace megalith::parallel {

namespace {

// Formats it as nvidia-smi does: GPU- and 16 bytes in groups of 4, 2, 2, 2 and 6.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

}  // namespace

std::optional<GpuIdentity> gpu_identity(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  cudaDeviceProp properties{};
  std::array<char, 32> bus{};
  if (cudaGetDeviceProperties(&properties, device.index()) != cudaSuccess ||
      cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device.index()) != cudaSuccess)
    return std::nullopt;
  return GpuIdentity{uuid_text(properties.uuid), to_lower(bus.data())};
}

}  // namespace megalith::parallel
