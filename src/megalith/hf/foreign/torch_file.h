// TorchFile: what torch.save wrote, without Python. Tensors are views of the file.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "megalith/hf/foreign/pickle_value.h"
#include "megalith/hf/foreign/stored_zip.h"
#include "megalith/io/mapped_file.h"

namespace megalith::hf {

// Type and place of a tensor in a TorchFile.
struct TorchTensor {
  std::string storage;  // member of the archive: "data/0"
  at::ScalarType dtype = at::kFloat;
  int64_t offset = 0;  // in elements, as the strides
  std::vector<int64_t> shape, strides;
};

// Constant after construction; may be used by several threads. Files of the form before PyTorch 1.6 are refused.
class TorchFile {
 public:
  // Maps the file. Throws DataError that names it and what is wrong, as for the pickle in it (pickle_reader.h).
  explicit TorchFile(const std::filesystem::path& path);
  // The same for bytes [offset, offset+bytes) of a file that is mapped already.
  TorchFile(std::shared_ptr<const io::MappedFile> file, uint64_t offset, uint64_t bytes, std::string name);

  const std::string& name() const { return name_; }
  // The value that was saved.
  const PickleValue& root() const { return pickle_->root(); }

  // Returns the description of a tensor or parameter; std::nullopt for other values. Throws DataError when it is one
  // that cannot be read: of another layout, or beyond the end of its storage.
  std::optional<TorchTensor> describe(const PickleValue& given) const;
  // Returns its elements: a view of the file, read-only as those of SafetensorsFile, which keeps the file mapped. Where
  // the file does not align them, a copy.
  at::Tensor tensor(const TorchTensor& described) const;

 private:
  std::shared_ptr<const io::MappedFile> file_;
  std::string name_;
  StoredZip zip_;
  std::unique_ptr<const Pickle> pickle_;
};

// Returns the sizes in a torch.Size, tuple or list of whole numbers; std::nullopt for anything else.
std::optional<std::vector<int64_t>> int_list(const PickleValue* value);
// Returns the type of a description such as "torch.bfloat16" or "torch.BFloat16Storage"; std::nullopt for types that
// safetensors files do not have.
std::optional<at::ScalarType> torch_dtype(std::string_view name);

}  // namespace megalith::hf
