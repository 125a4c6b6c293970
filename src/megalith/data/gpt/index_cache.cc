#include "megalith/data/gpt/index_cache.h"

#include <optional>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/data/gpt/file_lock.h"
#include "megalith/data/gpt/md5.h"

namespace megalith::data {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

constexpr uint64_t kLongestDescription = uint64_t{64} << 20;

std::string array_file(const std::string& name) { return name + ".npy"; }

bool is_complete(const IndexCacheKey& key, const std::vector<std::string>& names) {
  std::error_code ignored;
  bool complete = fs::exists(key.path("description.txt"), ignored);
  for (const std::string& name : names) complete = complete && fs::exists(key.path(array_file(name)), ignored);
  return complete;
}

// Throws DataError when the files are not what they should be.
IndexArrays load(const IndexCacheKey& key, const std::vector<std::string>& names,
                 const std::function<void(const IndexArrays&)>& accept) {
  const fs::path description = key.path("description.txt");
  check<DataError>(hf::read_text_file(description, kLongestDescription) == key.description,
                   "{}: the description of another dataset", description.string());
  IndexArrays arrays;
  for (const std::string& name : names) arrays.push_back(IndexArray::open_npy(key.path(array_file(name))));
  accept(arrays);
  return arrays;
}

std::optional<IndexArrays> try_load(const IndexCacheKey& key, const std::vector<std::string>& names,
                                    const std::function<void(const IndexArrays&)>& accept) {
  if (!is_complete(key, names)) return std::nullopt;
  try {
    return load(key, names, accept);
  } catch (const DataError& error) {
    log_warning("{}; it is built again", error.what());
    return std::nullopt;
  }
}

void save(const IndexCacheKey& key, const std::vector<std::string>& names, const IndexArrays& arrays) {
  StagedFiles files;
  for (size_t i = 0; i < names.size(); ++i) arrays[i].write_npy(files.create(key.path(array_file(names[i]))));
  files.create(key.path("description.txt")).write_at(0, key.description.data(), key.description.size());
  files.commit();
}

// Sleeps between looks at the lock and says what is waited for.
class Patience {
 public:
  Patience(const fs::path& lock, const IndexCacheWait& wait) : lock_(lock), wait_(wait) {}

  void pause() {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_);
    check<DataError>(
        waited < wait_.limit,
        "{}: waited {} s for {} to build the indices of the dataset. If it still does, start again when it "
        "is done; if it is stuck, end it",
        lock_.string(), waited.count() / 1000, FileLock::holder(lock_));
    if (waited >= next_notice_) {
      log_info("waiting for {} to build the indices of the dataset ({} s; {})", FileLock::holder(lock_),
               waited.count() / 1000, lock_.string());
      next_notice_ = waited + wait_.notice;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, std::chrono::milliseconds(500));
  }

 private:
  fs::path lock_;
  IndexCacheWait wait_;
  Clock::time_point start_ = Clock::now();
  std::chrono::milliseconds next_notice_ = wait_.notice;
  std::chrono::milliseconds sleep_{5};
};

}  // namespace

fs::path IndexCacheKey::path(const std::string& affix) const {
  return folder / fmt::format("{}-{}-{}-{}", md5_hex(description), class_name, split, affix);
}

IndexArrays load_or_build(const IndexCacheKey& key, const std::vector<std::string>& names,
                          const std::function<IndexArrays()>& build,
                          const std::function<void(const IndexArrays&)>& accept, const IndexCacheWait& wait) {
  const fs::path lock_path = key.path("lock");
  Patience patience(lock_path, wait);
  if (auto arrays = try_load(key, names, accept)) return *std::move(arrays);
  for (;;) {
    if (const auto lock = FileLock::try_lock(lock_path)) {
      // Another process may have built them since they were looked for.
      if (auto arrays = try_load(key, names, accept)) return *std::move(arrays);
      const IndexArrays built = build();
      check(built.size() == names.size(), "{} arrays were built, {} have names", built.size(), names.size());
      save(key, names, built);
      return load(key, names, accept);  // mapped: pages are shared by the ranks of a machine
    }
    patience.pause();
  }
}

}  // namespace megalith::data
