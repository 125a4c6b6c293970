// Replaces nccl_backend.cc in a build without CUDA.
#include "megalith/base/error.h"
#include "megalith/comm/backend/c10d_backend.h"
#include "megalith/comm/backend/stand_in.h"
#include "megalith/comm/world.h"

namespace megalith::comm {

bool nccl_available() { return false; }

std::unique_ptr<Backend> make_nccl_backend(const C10dGroup&, const std::string& name, const NcclGroupSettings&) {
  throw InternalError("group " + name + " asks for NCCL in a build without CUDA");
}

std::shared_ptr<StreamMarks> make_stream_marks(at::Device device) {
  throw InternalError("marks of " + device.str() + " are asked for in a build without CUDA");
}

std::unique_ptr<StandInDevice> make_cuda_stand_ins(c10::Device device) {
  throw InternalError("stand-ins on " + device.str() + " are asked for in a build without CUDA");
}

}  // namespace megalith::comm
