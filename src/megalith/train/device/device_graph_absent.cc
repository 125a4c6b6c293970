// Replaces device_graph_cuda.cc in a build without CUDA.
#include "megalith/base/error.h"
#include "megalith/train/device/device_graph.h"

namespace megalith::train {

std::unique_ptr<DeviceGraph> make_device_graph(const DeviceGraph* /*other*/) {
  throw InternalError("a graph of device work in a build without CUDA");
}

}  // namespace megalith::train
