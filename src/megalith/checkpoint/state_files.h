// StateFiles: the optimizer's state and the random states in a checkpoint folder, for any layout: whoever reads asks
// for its own rectangles.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/hf/file_io.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/optim/optimizer.h"

namespace megalith::checkpoint {

// The files of one stem. A rectangle whose elements are neighbours in the file, which are all of them where the layout
// is the one that saved, is read straight into its place; others are copied out of the mapped file. Constant after
// construction.
class StateFiles : public optim::StateSource {
 public:
  // Throws DataError when the checkpoint does not hold `stem`, or a file of it is missing or broken.
  StateFiles(const std::filesystem::path& folder, const Manifest& manifest, const std::string& stem);

  std::string name() const override { return folder_.string(); }
  std::vector<Tensor> tensors() const override;
  // Throws DataError for a tensor that is not there.
  void read(const parallel::ShardedTensor& wanted) const override;

  // The elements of a whole tensor of bytes.
  std::string bytes(const std::string& name) const;

 private:
  struct File {
    hf::SafetensorsFile tensors;
    hf::FileHandle handle;
    uint64_t data_offset;  // of the tensors' bytes
  };
  const File& file_of(const std::string& name) const;
  bool read_directly(const File& file, const parallel::ShardedTensor& wanted) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<File>> files_;
};

}  // namespace megalith::checkpoint
