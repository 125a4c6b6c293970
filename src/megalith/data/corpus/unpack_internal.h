// One function per compression format; a build without the library has one that throws a ConfigError.
#pragma once

#include "megalith/data/corpus/byte_source.h"

namespace megalith::data {

// Return a source of the decompressed bytes of `packed`. `name` is the file's name in messages. Both take ownership of
// `packed`, and read it only as far as their output needs.
std::unique_ptr<ByteSource> unpack_gzip(std::unique_ptr<ByteSource> packed, const std::string& name);
std::unique_ptr<ByteSource> unpack_zstd(std::unique_ptr<ByteSource> packed, const std::string& name);

}  // namespace megalith::data
