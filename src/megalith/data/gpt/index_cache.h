// Index cache: indices on disk, built once for all ranks and runs. The files are those of Megatron's own cache:
//
//   FOLDER/MD5-CLASS-SPLIT-description.txt     what they were built from; MD5 is the hash of this text
//   FOLDER/MD5-CLASS-SPLIT-NAME.npy            one per array
//
// Nothing here is collective: ranks meet only through the files, so a slow build cannot exceed the time limit of a
// collective.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "megalith/data/gpt/index_array.h"
#include "megalith/io/file_lock.h"

namespace megalith::data {

// Identifies the indices of one dataset in a cache folder. Equal descriptions mean equal indices; the hash only keeps
// file names short.
struct IndexCacheKey {
  std::filesystem::path folder;
  std::string class_name;   // "GPTDataset"
  std::string split;        // "train"
  std::string description;  // JSON

  // Returns the path of an array ("document_index.npy"), the description ("description.txt") or the lock ("lock").
  std::filesystem::path path(const std::string& affix) const;
};

// In the order of the names that were asked for.
using IndexArrays = std::vector<IndexArray>;

// Returns the arrays `names` from the cache. If they do not exist, this process builds and writes them, or waits while
// another one does: the holder of the lock file builds. The lock of a process that dies is released, and files get
// their names only when complete, the description last. Files that cannot be read, or for which `accept` throws a
// DataError, are built again, with a warning. Throws a DataError if the folder cannot be written or the wait takes too
// long.
IndexArrays load_or_build(const IndexCacheKey& key, const std::vector<std::string>& names,
                          const std::function<IndexArrays()>& build,
                          const std::function<void(const IndexArrays&)>& accept, const io::LockWait& wait = {});

}  // namespace megalith::data
