// Gloo and NCCL, both through c10d.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "megalith/comm/backend/nccl_settings.h"
#include "megalith/comm/op/backend.h"
#include "megalith/comm/op/stream_marks.h"

namespace c10d {
class Backend;
}

namespace megalith::comm {

// A group as c10d sees it.
struct C10dGroup {
  c10::intrusive_ptr<c10d::Store> store;  // private to the group
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};  // our limit; c10d's own is set later than it
  at::Device device = at::kCPU;         // device of the tensors
};

// Connects all members over TCP; blocks until they have arrived. If `interface` is empty, `host` selects the address.
std::unique_ptr<Backend> make_gloo_backend(const C10dGroup& group, const std::string& interface,
                                           const std::string& host);
// NCCL creates its communicator at the first operation, which blocks the host until all members have arrived. Throws
// InternalError in a build without CUDA.
std::unique_ptr<Backend> make_nccl_backend(const C10dGroup& group, const std::string& name,
                                           const NcclGroupSettings& settings);

// Wraps a c10d backend, for tensors on `device`. Pass `marks` if its wait() blocks the stream (NCCL), nullptr if it
// blocks the host (Gloo). `stream` returns what Backend::stream() does; empty if the host does the work.
using BackendStream = std::function<std::optional<c10::Stream>()>;
std::unique_ptr<Backend> wrap_c10d(c10::intrusive_ptr<c10d::Backend> inner, at::Device device,
                                   std::shared_ptr<StreamMarks> marks = nullptr, BackendStream stream = {});

}  // namespace megalith::comm
