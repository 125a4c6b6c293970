// The kind of compression is read from the first bytes, not from the name, so that pipes work as well: `zstdcat`, stdin
// or a file called .txt. Decompressors are sources themselves, put around the file.
#include "megalith/data/corpus/byte_source.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "megalith/base/error.h"
#include "megalith/data/corpus/unpack_internal.h"

namespace megalith::data {

namespace {

// A file or pipe, uncompressed, with a few bytes of look-ahead for its magic number.
class FileBytes final : public ByteSource {
 public:
  FileBytes(const std::string& path, std::stop_token stop) : name_(path), stop_(std::move(stop)) {
    descriptor_ = path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    check<DataError>(descriptor_ >= 0, "cannot read {}: {}", name_, std::generic_category().message(errno));
  }
  ~FileBytes() override { ::close(descriptor_); }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  size_t read(std::span<char> out) override {
    // Bytes that were only looked at come first; a short read is fine, callers ask again.
    if (!looked_at_.empty()) {
      const size_t count = std::min(out.size(), looked_at_.size());
      std::memcpy(out.data(), looked_at_.data(), count);
      looked_at_.erase(0, count);
      return count;
    }
    return read_file(out);
  }

  // Returns the first bytes, up to `count`, without consuming them.
  const std::string& look_ahead(size_t count) {
    std::string bytes(count, '\0');
    while (looked_at_.size() < count) {
      const size_t got = read_file(std::span(bytes).first(count - looked_at_.size()));
      if (got == 0) break;
      looked_at_.append(bytes, 0, got);
    }
    return looked_at_;
  }

 private:
  // A stop request looks like the end of the input; a partial last line does no harm, since nothing is committed then.
  size_t read_file(std::span<char> out) {
    for (;;) {
      // Wakes up every 100 ms to check for a stop request; regular files are always ready.
      pollfd waiting{.fd = descriptor_, .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, 100) == 0) {
        if (stop_.stop_requested()) return 0;
        continue;
      }
      const ssize_t count = ::read(descriptor_, out.data(), out.size());
      if (count < 0 && errno == EINTR) continue;
      check<DataError>(count >= 0, "cannot read {}: {}", name_, std::generic_category().message(errno));
      return static_cast<size_t>(count);
    }
  }

  std::string name_;
  std::stop_token stop_;
  int descriptor_ = -1;
  std::string looked_at_;  // read ahead and not yet returned
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path, std::stop_token stop) {
  auto file = std::make_unique<FileBytes>(path, std::move(stop));
  const std::string start = file->look_ahead(4);  // the magic numbers of gzip and Zstandard
  if (start.starts_with("\x1f\x8b")) return unpack_gzip(std::move(file), path);
  if (start == "\x28\xb5\x2f\xfd") return unpack_zstd(std::move(file), path);
  return file;
}

}  // namespace megalith::data
