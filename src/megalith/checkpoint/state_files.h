// StateFiles: the optimizer's state and the random states in a checkpoint folder, for any layout: whoever reads asks
// for its own rectangles.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/optim/optimizer.h"

namespace megalith::checkpoint {

// Maps the files of one stem. Constant after construction.
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
  const hf::SafetensorsFile& file_of(const std::string& name) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<hf::SafetensorsFile>> files_;
};

}  // namespace megalith::checkpoint
