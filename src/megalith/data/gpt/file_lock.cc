#include "megalith/data/gpt/file_lock.h"

#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "megalith/base/error.h"

namespace megalith::data {

namespace fs = std::filesystem;

namespace {

std::string own_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

hf::FileHandle open_lock_file(const fs::path& path) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  check<DataError>(!error, "the folder {} cannot be made: {}", path.parent_path().string(), error.message());
  return hf::FileHandle::open_or_create(path);
}

}  // namespace

std::optional<FileLock> FileLock::try_lock(const fs::path& path) {
  for (;;) {
    hf::FileHandle file = open_lock_file(path);
    if (::flock(file.descriptor(), LOCK_EX | LOCK_NB) != 0) {
      check<DataError>(errno == EWOULDBLOCK, "{} cannot be locked: {}", path.string(),
                       std::generic_category().message(errno));
      return std::nullopt;
    }
    if (!file.is_named()) continue;  // its last holder removed it meanwhile
    const std::string name = own_name();
    file.allocate(0);
    file.write_at(0, name.data(), name.size());
    return FileLock(std::move(file));
  }
}

std::string FileLock::holder(const fs::path& path) {
  try {
    return hf::read_text_file(path, 1000);
  } catch (const DataError&) {
    return "nobody any more";  // it was removed meanwhile
  }
}

FileLock::~FileLock() {
  if (file_.is_open()) ::unlink(file_.path().c_str());
}

}  // namespace megalith::data
