#include "megalith/checkpoint/state_files.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"

namespace megalith::checkpoint {

namespace fs = std::filesystem;

StateFiles::StateFiles(const fs::path& folder, const Manifest& manifest, const std::string& stem) : folder_(folder) {
  check<DataError>(manifest.has(stem), "{} does not hold \"{}\": it was saved without", folder.string(), stem);
  for (const FileRecord& file : manifest.files)
    if (is_tensor_file(file.name, stem)) files_.push_back(std::make_unique<hf::SafetensorsFile>(folder / file.name));
}

const hf::SafetensorsFile& StateFiles::file_of(const std::string& name) const {
  for (const auto& file : files_)
    if (file->find(name) != nullptr) return *file;
  throw DataError(fmt::format("{} holds no tensor {}", folder_.string(), name));
}

std::vector<optim::StateSource::Tensor> StateFiles::tensors() const {
  std::vector<Tensor> all;
  for (const auto& file : files_)
    for (const hf::TensorInfo& info : file->tensors()) all.push_back({info.name, info.shape});
  return all;
}

void StateFiles::read(const parallel::ShardedTensor& wanted) const {
  const at::NoGradGuard no_grad;
  const hf::SafetensorsFile& file = file_of(wanted.name);
  at::Tensor part = file.tensor(wanted.name);
  check(part.dim() == wanted.local.dim(), "tensor {} has {} dimensions there and {} here", wanted.name, part.dim(),
        wanted.local.dim());
  for (int64_t d = 0; d < part.dim(); ++d)
    part = part.narrow(d, wanted.offset[static_cast<size_t>(d)], wanted.local.size(d));
  at::Tensor(wanted.local).copy_(part);
  file.release(wanted.name);
}

std::string StateFiles::bytes(const std::string& name) const {
  const at::Tensor tensor = file_of(name).tensor(name);
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace megalith::checkpoint
