// One function for each packed format; a build without the library has one that throws ConfigError.
#pragma once

#include "megalith/data/corpus/byte_source.h"

namespace megalith::data {

// What `packed` unpacks to; `name` stands for the file in messages.
std::unique_ptr<ByteSource> unpack_gzip(std::unique_ptr<ByteSource> packed, const std::string& name);
std::unique_ptr<ByteSource> unpack_zstd(std::unique_ptr<ByteSource> packed, const std::string& name);

}  // namespace megalith::data
