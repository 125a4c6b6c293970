// Replaces gzip.cc in a build without zlib.
#include "megalith/base/error.h"
#include "megalith/data/corpus/unpack_internal.h"

namespace megalith::data {

std::unique_ptr<ByteSource> unpack_gzip(std::unique_ptr<ByteSource> /*packed*/, const std::string& name) {
  throw ConfigError(
      fmt::format("{} is packed with gzip, and this build has no zlib. Unpack it, or build with zlib1g-dev "
                  "installed",
                  name));
}

}  // namespace megalith::data
