// Declaration of what c10d's ProcessGroupGloo.hpp calls; the definition is inside libtorch_cpu.so.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
