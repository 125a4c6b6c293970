// FileMerge: adds an adapter to the tensors of its base model as files have them, one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/hf/weight_files.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::peft {

// Constant after construction.
class FileMerge {
 public:
  // Reads the configuration and opens the file. `base`: the tensors of the model's files. Throws DataError when the
  // adapter is one of another model: tensors that fit no tensor of the base, by name, or of another shape.
  FileMerge(const std::filesystem::path& adapter, const std::vector<hf::FileTensor>& base);

  // The tensor with its update, in its own type, rounded once; the adapter's own where it was saved as a whole; the
  // tensor itself where the adapter has nothing for it.
  at::Tensor merged(const hf::FileTensor& file, const at::Tensor& tensor) const;

 private:
  AdapterConfig config_;
  hf::WeightFiles files_;
};

}  // namespace megalith::peft
