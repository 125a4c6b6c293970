// Many processes may want the same indices at the same time. The first to lock the lock file builds them, the others
// poll for the lock or for complete files. Files get their names by a rename, the description last, so its existence
// means that the arrays are complete; a process that dies while building leaves .tmp files and a released lock.
#include "megalith/data/gpt/index_cache.h"

#include <optional>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/data/gpt/md5.h"

namespace megalith::data {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kLongestDescription = uint64_t{64} << 20;  // bytes; a blend of many prefixes has a long one

std::string array_file(const std::string& name) { return name + ".npy"; }

// Whether all files are there; errors of the file system count as "no".
bool is_complete(const IndexCacheKey& key, const std::vector<std::string>& names) {
  std::error_code ignored;
  bool complete = fs::exists(key.path("description.txt"), ignored);
  for (const std::string& name : names) complete = complete && fs::exists(key.path(array_file(name)), ignored);
  return complete;
}

// Opens the arrays. Throws a DataError if the files are not those of the key.
IndexArrays load(const IndexCacheKey& key, const std::vector<std::string>& names,
                 const std::function<void(const IndexArrays&)>& accept) {
  const fs::path description = key.path("description.txt");
  check<DataError>(io::read_text_file(description, kLongestDescription) == key.description,
                   "{}: the description of another dataset", description.string());
  IndexArrays arrays;
  for (const std::string& name : names) arrays.push_back(IndexArray::open_npy(key.path(array_file(name))));
  accept(arrays);
  return arrays;
}

// Damaged files are a warning, not an error: the cache can always be built again.
std::optional<IndexArrays> try_load(const IndexCacheKey& key, const std::vector<std::string>& names,
                                    const std::function<void(const IndexArrays&)>& accept) {
  if (!is_complete(key, names)) return std::nullopt;
  try {
    return load(key, names, accept);
  } catch (const DataError& error) {
    log_warning("{}; the indices are built again", error.what());
    return std::nullopt;
  }
}

void save(const IndexCacheKey& key, const std::vector<std::string>& names, const IndexArrays& arrays) {
  StagedFiles files;
  for (size_t i = 0; i < names.size(); ++i) arrays[i].write_npy(files.create(key.path(array_file(names[i]))));
  files.create(key.path("description.txt")).write_at(0, key.description.data(), key.description.size());
  files.commit();
}

}  // namespace

fs::path IndexCacheKey::path(const std::string& affix) const {
  return folder / fmt::format("{}-{}-{}-{}", md5_hex(description), class_name, split, affix);
}

// Double-checked: once without the lock, for the common case, and again with it.
IndexArrays load_or_build(const IndexCacheKey& key, const std::vector<std::string>& names,
                          const std::function<IndexArrays()>& build,
                          const std::function<void(const IndexArrays&)>& accept, const io::LockWait& wait) {
  const fs::path lock_path = key.path("lock");
  io::LockPatience patience(lock_path, "build the indices of the dataset", wait);
  if (auto arrays = try_load(key, names, accept)) return *std::move(arrays);
  for (;;) {
    if (const auto lock = io::FileLock::try_lock(lock_path)) {
      // Another process may have built them in the meantime.
      if (auto arrays = try_load(key, names, accept)) return *std::move(arrays);
      const IndexArrays built = build();
      check(built.size() == names.size(), "{} arrays were built, {} have names", built.size(), names.size());
      save(key, names, built);
      return load(key, names, accept);  // not `built`: ranks on one machine share the pages of the mapped files
    }
    patience.pause();
  }
}

}  // namespace megalith::data
