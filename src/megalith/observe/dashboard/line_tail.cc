// A file that grows is read from the position reached before; a file that was rewritten must be read from its start.
// Size and inode alone cannot tell the two apart: a resumed run replaces metrics.jsonl by a shorter copy and appends to
// it, and a file system may reuse the inode. So the last bytes read are kept and compared with those on disk.
#include "megalith/observe/dashboard/line_tail.h"

#include <algorithm>
#include <cstring>

namespace megalith::observe {

namespace {

// Bytes before the current position that are compared to tell growth from a rewrite.
constexpr size_t kFingerprintBytes = 256;

}  // namespace

// The same file (device and inode), not shorter than before, with the same bytes before our position.
bool LineTail::continues(const InsideFile& file) const {
  if (!version_ || version_->device != file.version().device || version_->inode != file.version().inode) return false;
  if (file.version().bytes < done_) return false;
  std::string on_disk(last_read_.size(), '\0');
  on_disk.resize(file.read_at(done_ - last_read_.size(), on_disk.data(), on_disk.size()));
  return on_disk == last_read_;
}

// An unchanged version means that nothing has to be read, which is the common case.
LineTail::Change LineTail::poll(const std::function<void(std::string_view)>& line,
                                const std::function<void()>& start_anew) {
  const std::optional<InsideFile> file = InsideFile::open(folder_, name_);
  if (file && version_ == file->version()) return Change::kNone;
  const uint64_t before = done_;
  // A file of which no line has been passed on cannot have lost any.
  const bool anew = before > 0 && (!file || !continues(*file));
  if (anew) {
    start_anew();
    done_ = 0;
    last_read_.clear();
  }
  // Forgotten first, so that a file that has disappeared counts as new when it comes back.
  version_.reset();
  if (!file) return anew ? Change::kStartedAnew : Change::kNone;
  version_ = file->version();
  read(*file, line);
  if (anew) return Change::kStartedAnew;
  return done_ > before ? Change::kGrown : Change::kNone;
}

void LineTail::read(const InsideFile& file, const std::function<void(std::string_view)>& line) {
  // The buffer begins with the byte at offset done_; an incomplete line moves to its front.
  const uint64_t bytes = file.version().bytes;
  // A few bytes for the usual news of a line or two, 4 MiB at most for the first read of a long run.
  std::string buffer(std::min<uint64_t>(kMostLineBytes, bytes - done_), '\0');
  size_t held = 0;
  while (done_ + held < bytes) {
    const size_t wanted = std::min<uint64_t>(buffer.size() - held, bytes - done_ - held);
    const size_t got = file.read_at(done_ + held, buffer.data() + held, wanted);
    if (got == 0) break;
    held += got;
    size_t taken = 0;
    while (const void* line_end = std::memchr(buffer.data() + taken, '\n', held - taken)) {
      const auto end = static_cast<size_t>(static_cast<const char*>(line_end) - buffer.data());
      line(std::string_view(buffer).substr(taken, end - taken));
      taken = end + 1;
    }
    // A line that does not fit: reported once as empty, and its bytes are dropped.
    if (taken == 0 && held == kMostLineBytes) {
      line({});
      taken = held;
    }
    if (taken == 0) continue;
    const size_t kept = std::min(kFingerprintBytes, taken);
    last_read_.assign(buffer, taken - kept, kept);
    held -= taken;
    std::memmove(buffer.data(), buffer.data() + taken, held);
    done_ += taken;
  }
}

// Smaller blocks than for a first read: a zoom looks at some hundred lines.
void read_lines(const std::filesystem::path& folder, const std::string& name, uint64_t begin, uint64_t end,
                const std::function<bool(std::string_view)>& line) {
  constexpr size_t kBlockBytes = size_t{1} << 18;
  const std::optional<InsideFile> file = InsideFile::open(folder, name);
  if (!file) return;
  std::string text;  // the lines that are not passed on yet, the last of them unfinished
  std::string block(kBlockBytes, '\0');
  while (begin < end) {
    const size_t got = file->read_at(begin, block.data(), std::min<uint64_t>(block.size(), end - begin));
    if (got == 0) return;
    begin += got;
    text.append(block, 0, got);
    size_t taken = 0;
    for (size_t at; (at = text.find('\n', taken)) != std::string::npos; taken = at + 1)
      if (!line(std::string_view(text).substr(taken, at - taken))) return;
    text.erase(0, taken);
    if (text.size() > LineTail::kMostLineBytes) text.clear();
  }
}

}  // namespace megalith::observe
