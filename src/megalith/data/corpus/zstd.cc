#include <zstd.h>

#include <vector>

#include "megalith/base/error.h"
#include "megalith/data/corpus/unpack_internal.h"

namespace megalith::data {

namespace {

// Decompresses a sequence of Zstandard frames.
class ZstdBytes final : public ByteSource {
 public:
  ZstdBytes(std::unique_ptr<ByteSource> packed, const std::string& name)
      : packed_(std::move(packed)), name_(name), input_(ZSTD_DStreamInSize()), context_(ZSTD_createDCtx()) {
    check(context_ != nullptr, "zstd cannot be started");
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, 31);  // also accept files made with `zstd --long=31`
  }
  ~ZstdBytes() override { ZSTD_freeDCtx(context_); }
  ZstdBytes(const ZstdBytes&) = delete;
  ZstdBytes& operator=(const ZstdBytes&) = delete;

  // Returns as soon as there is any output; 0 would mean the end.
  size_t read(std::span<char> out) override {
    ZSTD_outBuffer to{.dst = out.data(), .size = out.size(), .pos = 0};
    while (to.pos == 0) {
      // The decoder may hold output back when the buffer was full, so input is read only after it has been drained.
      if (from_.pos == from_.size && !may_hold_more_ && !fill()) {
        check<DataError>(between_frames_, "{}: the zstd data ends too early; the file is cut short", name_);
        return 0;
      }
      const size_t result = ZSTD_decompressStream(context_, &to, &from_);
      check<DataError>(ZSTD_isError(result) == 0, "{}: the zstd data is damaged: {}", name_, ZSTD_getErrorName(result));
      between_frames_ = result == 0;
      may_hold_more_ = to.pos == to.size;
    }
    return to.pos;
  }

 private:
  // Reads the next packed bytes; false at their end.
  bool fill() {
    from_ = {.src = input_.data(), .size = packed_->read(input_), .pos = 0};
    return from_.size > 0;
  }

  std::unique_ptr<ByteSource> packed_;
  std::string name_;
  std::vector<char> input_;
  ZSTD_DCtx* context_;
  ZSTD_inBuffer from_{};
  bool between_frames_ = false;  // input may end only between two frames
  bool may_hold_more_ = false;   // the output was full, so there may be more without new input
};

}  // namespace

std::unique_ptr<ByteSource> unpack_zstd(std::unique_ptr<ByteSource> packed, const std::string& name) {
  return std::make_unique<ZstdBytes>(std::move(packed), name);
}

}  // namespace megalith::data
