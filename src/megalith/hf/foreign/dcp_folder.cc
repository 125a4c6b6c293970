// .metadata describes objects of these classes (torch/distributed/checkpoint/metadata.py, filesystem.py):
//
//   Metadata                state_dict_metadata: {name: TensorStorageMetadata or BytesStorageMetadata}
//                           storage_data: {MetadataIndex: _StorageInfo}
//   TensorStorageMetadata   properties: TensorProperties, whose state is (dtype, …);  size;  chunks
//   ChunkStorageMetadata    offsets, sizes
//   MetadataIndex           fqn (the name), offset
//   _StorageInfo            relative_path, offset, length, transform_descriptors
#include "megalith/hf/foreign/dcp_folder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/hf/foreign/pickle_reader.h"
#include "megalith/hf/foreign/torch_file.h"
#include "megalith/hf/safetensors_header.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/io/json_text.h"

namespace megalith::hf {

namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

constexpr const char* kMetadataFile = ".metadata";
constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata.";

bool is_class(const PickleValue& value, std::string_view name) {
  return value.is(Kind::kObject) && value.text.starts_with(kModule) && value.text.substr(kModule.size()) == name;
}

// Attributes of the objects above, with messages that name the file and the tensor.
class Attributes {
 public:
  Attributes(const PickleValue& object, const fs::path& file, const std::string& tensor)
      : object_(object), file_(file), tensor_(tensor) {}

  [[noreturn]] void refuse(std::string_view what) const {
    throw DataError(
        fmt::format("{}: the description of {} is damaged: {}", file_.string(), io::in_quotes(tensor_), what));
  }
  const PickleValue& get(const char* name) const {
    const PickleValue* found = object_.find(name);
    if (!found) refuse(fmt::format("it lacks {}", name));
    return *found;
  }
  std::vector<int64_t> sizes(const char* name) const {
    const auto found = int_list(&get(name));
    if (!found || std::ranges::any_of(*found, [](int64_t size) { return size < 0; }))
      refuse(fmt::format("{} is not a list of sizes", name));
    return *found;
  }
  uint64_t bytes(const char* name) const {
    const PickleValue& found = get(name);
    if (!found.is(Kind::kInt) || found.integer < 0) refuse(fmt::format("{} is not a number of bytes", name));
    return static_cast<uint64_t>(found.integer);
  }

 private:
  const PickleValue& object_;
  const fs::path& file_;
  const std::string& tensor_;
};

at::ScalarType dtype_in(const Attributes& tensor) {
  const PickleValue& properties = tensor.get("properties");
  // TensorProperties has a state of its own, a tuple that begins with the dtype.
  const PickleValue* dtype =
      properties.state && properties.state->is(Kind::kTuple) ? properties.state->at(0) : properties.find("dtype");
  if (!dtype || !dtype->is(Kind::kGlobal)) tensor.refuse("it lacks a dtype");
  const auto type = torch_dtype(dtype->text);
  if (!type) tensor.refuse(fmt::format("tensors of {} are not read", dtype->text));
  return *type;
}

// Whether a rectangle lies in a tensor.
bool is_inside(at::IntArrayRef offset, at::IntArrayRef shape, at::IntArrayRef whole) {
  if (offset.size() != whole.size() || shape.size() != whole.size()) return false;
  for (size_t d = 0; d < whole.size(); ++d)
    if (offset[d] < 0 || shape[d] < 0 || shape[d] > whole[d] || offset[d] > whole[d] - shape[d]) return false;
  return true;
}

// Returns the bytes of a tensor's elements; refuses those that no file could hold.
uint64_t element_bytes(const Attributes& tensor, at::ScalarType dtype, const std::vector<int64_t>& shape) {
  const auto bytes = tensor_bytes(dtype_of(dtype), shape);
  if (!bytes) tensor.refuse(fmt::format("a shape of [{}]", fmt::join(shape, ", ")));
  return *bytes;
}

}  // namespace

bool is_dcp_folder(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kMetadataFile, error);
}

DcpFolder::DcpFolder(const fs::path& folder) : folder_(folder) {
  const fs::path path = folder / kMetadataFile;
  const io::MappedFile file(path);
  const auto pickle = read_pickle(file.text(0, file.size()), path.string());
  read_metadata(pickle->root());
  check_shards();
}

void DcpFolder::read_metadata(const PickleValue& root) {
  const fs::path path = folder_ / kMetadataFile;
  const PickleValue *described = root.find("state_dict_metadata"), *stored = root.find("storage_data");
  check<DataError>(is_class(root, "Metadata") && described && described->is_dict() && stored && stored->is_dict(),
                   "{}: not the metadata of a torch.distributed.checkpoint", path.string());
  // By name and offset.
  std::map<std::pair<std::string, std::vector<int64_t>>, const PickleValue*> places;
  for (const auto& [index, info] : stored->pairs) {
    const PickleValue* name = index->find("fqn");
    const auto offset = int_list(index->find("offset"));
    if (name && name->is(Kind::kText) && offset) places[{name->text, *offset}] = info;
  }
  for (const auto& [name, value] : described->pairs) {
    if (!name->is(Kind::kText) || !is_class(*value, "TensorStorageMetadata")) continue;
    const Attributes attributes(*value, path, name->text);
    DcpTensor tensor{dtype_in(attributes), attributes.sizes("size"), {}};
    uint64_t held = 0;
    for (const PickleValue* part : attributes.get("chunks").items) {
      const Attributes chunk(*part, path, name->text);
      DcpChunk found{chunk.sizes("offsets"), chunk.sizes("sizes")};
      if (!is_inside(found.offset, found.shape, tensor.shape)) attributes.refuse("a chunk is not inside the tensor");
      const auto place = places.find({name->text, found.offset});
      if (place == places.end()) attributes.refuse("no file holds one of its chunks");
      const Attributes info(*place->second, path, name->text);
      const PickleValue* transforms = place->second->find("transform_descriptors");
      if (transforms && !transforms->items.empty())
        attributes.refuse("its chunks are compressed; save the checkpoint without _extensions");
      found.file = info.get("relative_path").text;
      found.begin = info.bytes("offset");
      found.bytes = info.bytes("length");
      if (!stays_inside(found.file)) attributes.refuse("a chunk lies outside of the folder");
      const uint64_t elements = element_bytes(attributes, tensor.dtype, found.shape);
      if (elements > found.bytes) attributes.refuse("a chunk has fewer bytes than its elements need");
      held += elements;
      tensor.chunks.push_back(std::move(found));
    }
    if (held < element_bytes(attributes, tensor.dtype, tensor.shape)) attributes.refuse("its chunks do not cover it");
    tensors_.insert_or_assign(name->text, std::move(tensor));
  }
}

// Lists every missing file at once; each of them may take hours to copy.
void DcpFolder::check_shards() const {
  std::map<std::string, uint64_t> needed;  // bytes of each file
  for (const auto& [name, tensor] : tensors_)
    for (const DcpChunk& chunk : tensor.chunks)
      needed[chunk.file] = std::max(needed[chunk.file], chunk.begin + chunk.bytes);
  std::vector<std::string> wrong;
  for (const auto& [file, bytes] : needed) {
    std::error_code error;
    const uint64_t size = fs::file_size(folder_ / file, error);
    if (error)
      wrong.push_back(fmt::format("{} is missing", file));
    else if (size < bytes)
      wrong.push_back(fmt::format("{} has {} bytes instead of {}", file, size, bytes));
  }
  check<DataError>(wrong.empty(), "{}: {} of its files are not whole: {}. Copy the checkpoint again", folder_.string(),
                   wrong.size(), list_in_words(wrong));
}

const DcpTensor* DcpFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::shared_ptr<const io::MappedFile> DcpFolder::mapped(const std::string& file) const {
  const std::lock_guard lock(opening_);
  std::shared_ptr<const io::MappedFile>& slot = files_[file];
  if (!slot) slot = std::make_shared<const io::MappedFile>(folder_ / file);
  return slot;
}

at::Tensor DcpFolder::read(std::string_view name) const {
  const DcpTensor* tensor = find(name);
  check(tensor != nullptr, "{} holds no tensor {}", folder_.string(), name);
  return read(name, std::vector<int64_t>(tensor->shape.size(), 0), tensor->shape);
}

at::Tensor DcpFolder::read(std::string_view name, at::IntArrayRef offset, at::IntArrayRef shape) const {
  const at::NoGradGuard no_grad;
  const DcpTensor* tensor = find(name);
  check(tensor && is_inside(offset, shape, tensor->shape), "a rectangle of {} that {} does not hold", name,
        folder_.string());
  at::Tensor whole = at::empty(shape, tensor->dtype);
  int64_t filled = 0;
  for (const DcpChunk& chunk : tensor->chunks) {
    // The part that the chunk and the rectangle share.
    std::vector<int64_t> first, size;
    for (size_t d = 0; d < shape.size(); ++d) {
      first.push_back(std::max(chunk.offset[d], offset[d]));
      size.push_back(std::min(chunk.offset[d] + chunk.shape[d], offset[d] + shape[d]) - first[d]);
    }
    if (std::ranges::any_of(size, [](int64_t elements) { return elements <= 0; })) continue;
    const TorchFile file(mapped(chunk.file), chunk.begin, chunk.bytes,
                         fmt::format("{} (at byte {})", (folder_ / chunk.file).string(), chunk.begin));
    const auto described = file.describe(file.root());
    check<DataError>(described && described->shape == chunk.shape && described->dtype == tensor->dtype,
                     "{}: it should hold a part [{}] of {}, and holds something else", file.name(),
                     fmt::join(chunk.shape, ", "), io::in_quotes(name));
    at::Tensor from = file.tensor(*described), to = whole;
    for (size_t d = 0; d < shape.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      from = from.narrow(dim, first[d] - chunk.offset[d], size[d]);
      to = to.narrow(dim, first[d] - offset[d], size[d]);
    }
    to.copy_(from);
    filled += from.numel();
  }
  check<DataError>(filled == whole.numel(), "{}: the chunks of {} hold {} of {} elements", folder_.string(),
                   io::in_quotes(name), filled, whole.numel());
  return whole;
}

}  // namespace megalith::hf
