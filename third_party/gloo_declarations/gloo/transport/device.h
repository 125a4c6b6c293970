// Declarations of types that c10d's ProcessGroupGloo.hpp holds by pointer.
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
