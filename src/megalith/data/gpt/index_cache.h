// Indices on disk, built once for all ranks and runs. The files are those of Megatron's own cache:
//
//   FOLDER/MD5-CLASS-SPLIT-description.txt     what they were built from; MD5 is of this text
//   FOLDER/MD5-CLASS-SPLIT-NAME.npy            one for each array
//
// Nothing here is collective: ranks meet only through the files, so a slow build cannot run into a collective's time
// limit.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "megalith/data/gpt/index_array.h"
#include "megalith/io/file_lock.h"

namespace megalith::data {

struct IndexCacheKey {
  std::filesystem::path folder;
  std::string class_name;   // "GPTDataset"
  std::string split;        // "train"
  std::string description;  // JSON

  // The file of an array ("document_index.npy"), of the description ("description.txt"), of the lock ("lock").
  std::filesystem::path path(const std::string& affix) const;
};

using IndexArrays = std::vector<IndexArray>;

// The arrays `names` of the cache. When they are not there, this process builds and writes them, or waits while another
// one does; who holds the lock file builds. A process that died holds no lock, and files appear by their complete
// names only, the description last. Files that cannot be read or that `accept` throws DataError for are built again,
// with a warning. Throws DataError when the folder cannot be written or the wait is too long.
IndexArrays load_or_build(const IndexCacheKey& key, const std::vector<std::string>& names,
                          const std::function<IndexArrays()>& build,
                          const std::function<void(const IndexArrays&)>& accept, const io::LockWait& wait = {});

}  // namespace megalith::data
