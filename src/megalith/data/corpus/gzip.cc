#define ZLIB_CONST  // next_in is a pointer to const
#include <zlib.h>

#include <vector>

#include "megalith/base/error.h"
#include "megalith/data/corpus/unpack_internal.h"

namespace megalith::data {

namespace {

// Decompresses a sequence of gzip members, as `cat a.gz b.gz` makes it.
class GzipBytes final : public ByteSource {
 public:
  GzipBytes(std::unique_ptr<ByteSource> packed, const std::string& name)
      : packed_(std::move(packed)), name_(name), input_(size_t{1} << 16) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;  // zlib's code for the gzip header with the largest window
    check(inflateInit2(&stream_, kGzipOnly) == Z_OK, "zlib cannot be started");
  }
  ~GzipBytes() override { inflateEnd(&stream_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

  // Returns as soon as there is any output; 0 would mean the end.
  size_t read(std::span<char> out) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out == out.size()) {
      // More input is needed; without any, the file must have ended between two members.
      if (stream_.avail_in == 0 && !fill()) {
        check<DataError>(between_members_, "{}: the gzip data ends too early; the file is cut short", name_);
        return 0;
      }
      // Another member follows: zlib stops at the end of each and has to be told to start the next.
      if (between_members_) check(inflateReset(&stream_) == Z_OK, "zlib cannot be started again");
      const int result = inflate(&stream_, Z_NO_FLUSH);
      check<DataError>(result == Z_OK || result == Z_STREAM_END, "{}: the gzip data is damaged: {}", name_,
                       stream_.msg != nullptr ? stream_.msg : "no message");
      between_members_ = result == Z_STREAM_END;
    }
    return out.size() - stream_.avail_out;
  }

 private:
  // Reads the next packed bytes; false at their end.
  bool fill() {
    const size_t count = packed_->read(input_);
    stream_.next_in = reinterpret_cast<const Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(count);
    return count > 0;
  }

  std::unique_ptr<ByteSource> packed_;
  std::string name_;
  std::vector<char> input_;
  z_stream stream_{};
  bool between_members_ = false;  // a gzip file may consist of several members; input may end only between them
};

}  // namespace

std::unique_ptr<ByteSource> unpack_gzip(std::unique_ptr<ByteSource> packed, const std::string& name) {
  return std::make_unique<GzipBytes>(std::move(packed), name);
}

}  // namespace megalith::data
