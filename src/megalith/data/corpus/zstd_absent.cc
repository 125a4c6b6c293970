// Replaces zstd.cc in a build without libzstd.
#include "megalith/base/error.h"
#include "megalith/data/corpus/unpack_internal.h"

namespace megalith::data {

std::unique_ptr<ByteSource> unpack_zstd(std::unique_ptr<ByteSource> /*packed*/, const std::string& name) {
  throw ConfigError(
      fmt::format("{} is packed with Zstandard, and this build has no zstd. Unpack it, or build with libzstd-dev "
                  "installed",
                  name));
}

}  // namespace megalith::data
