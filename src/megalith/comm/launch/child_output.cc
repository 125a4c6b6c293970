// Ranks write to pipes, and the launcher forwards whole lines, so that lines of several ranks never mix. Reading never
// blocks: a rank that prints nothing must not hold up the others. A rank that floods its pipe is only slowed down,
// since the launcher empties it at every turn of its loop.
#include "megalith/comm/launch/child_output.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace megalith::comm {

namespace {

constexpr size_t kKeptLines = 20;         // for last_lines()
constexpr size_t kLongestLine = 1 << 16;  // longer ones are forwarded in pieces

// A line may be larger than what the terminal or pipe takes at once.
void write_all(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // nobody reads our output any longer
    done += static_cast<size_t>(n);
  }
}

}  // namespace

ChildOutput::ChildOutput(int source, int target, std::string prefix)
    : source_(source), target_(target), prefix_(std::move(prefix)) {}

ChildOutput::~ChildOutput() {
  if (source_ >= 0) close(source_);
}

ChildOutput::ChildOutput(ChildOutput&& other) noexcept
    : source_(std::exchange(other.source_, -1)),
      target_(other.target_),
      prefix_(other.prefix_),
      partial_(std::move(other.partial_)),
      last_(std::move(other.last_)),
      muted_(other.muted_),
      muted_lines_(other.muted_lines_) {}

// Reads until the pipe is empty. Text after the last line break waits for the rest of its line.
void ChildOutput::pump() {
  char buffer[1 << 16];
  while (source_ >= 0) {
    const ssize_t n = read(source_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    // The rank, and everything that inherited its pipe, has closed it. A last line without a line break is shown, too.
    if (n <= 0) {
      close(std::exchange(source_, -1));
      if (!partial_.empty()) emit(partial_);
      partial_.clear();
      return;
    }
    partial_.append(buffer, static_cast<size_t>(n));
    size_t from = 0;
    for (size_t at; (at = partial_.find('\n', from)) != std::string::npos; from = at + 1)
      emit(partial_.substr(from, at - from));
    partial_.erase(0, from);
    if (partial_.size() <= kLongestLine) continue;
    emit(partial_);
    partial_.clear();
  }
}

void ChildOutput::emit(const std::string& line) {
  if (muted_) {
    ++muted_lines_;
  } else {
    // On a terminal rank 0 may be drawing its live line, which takes its place again at the next step.
    write_all(target_, (isatty(target_) == 1 ? "\r\x1b[2K" : "") + prefix_ + line + "\n");
  }
  last_.push_back(line);
  if (last_.size() > kKeptLines) last_.pop_front();
}

}  // namespace megalith::comm
