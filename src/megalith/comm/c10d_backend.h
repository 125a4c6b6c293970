// Gloo and NCCL, both through c10d.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "megalith/comm/backend.h"

namespace c10d {
class Backend;
}

namespace megalith::comm {

struct C10dGroup {
  c10::intrusive_ptr<c10d::Store> store;  // private to the group
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
};

// Connects all members over TCP; blocks until they are there. `interface` empty: `host` says which address to bind.
std::unique_ptr<Backend> make_gloo_backend(const C10dGroup& group, const std::string& interface,
                                           const std::string& host);
// NCCL makes its communicators at the first operation. Throws InternalError in a build without CUDA.
std::unique_ptr<Backend> make_nccl_backend(const C10dGroup& group, const std::string& name);

// A c10d backend as ours. `waits_on_host`: wait() of its operations blocks the host (Gloo) rather than the stream
// (NCCL).
std::unique_ptr<Backend> wrap_c10d(c10::intrusive_ptr<c10d::Backend> inner, bool waits_on_host);

}  // namespace megalith::comm
