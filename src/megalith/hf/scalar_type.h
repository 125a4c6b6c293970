// Converts between the element types of files and ATen's.
#pragma once

#include <c10/core/ScalarType.h>

#include "megalith/hf/dtype.h"

namespace megalith::hf {

// Every Dtype has an ATen type.
at::ScalarType scalar_type(Dtype dtype);
// Throws ConfigError for a type that safetensors files do not have (complex and quantized types).
Dtype dtype_of(at::ScalarType type);

}  // namespace megalith::hf
