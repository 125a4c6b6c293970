// FileMerge: adds an adapter to the tensors of its base model's files, one tensor at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/hf/weight_files.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::peft {

// Constant after construction.
class FileMerge {
 public:
  // Reads the configuration and opens the file. `names` is the name map of the family, `base` lists the tensors of the
  // model's files. Throws DataError when the adapter belongs to another model: it has tensors without a counterpart in
  // the base, or of another shape.
  FileMerge(const std::filesystem::path& adapter, hf::NameMap names, const std::vector<hf::FileTensor>& base);

  // Returns the tensor with its update, in its own type, rounded once; the adapter's own tensor if it was saved as a
  // whole; the tensor itself if the adapter has no update for it.
  at::Tensor merged(const hf::FileTensor& file, const at::Tensor& tensor) const;

 private:
  // Returns s·B0·A0 / s [o, i] of a tensor of an adapter with AdapterConfig::pissa.
  at::Tensor start_of(const hf::FileTensor& file, const at::Tensor& tensor, int64_t rank, double scale) const;

  // The files stay mapped; tensors are read when they are merged.
  AdapterConfig config_;
  hf::NameMap names_;
  std::unique_ptr<const hf::WeightFiles> files_;
  std::unique_ptr<const hf::WeightFiles> start_;  // A0 and B0; nullptr if there are none, or if they are computed
};

}  // namespace megalith::peft
