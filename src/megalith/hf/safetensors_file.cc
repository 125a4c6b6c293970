// One mapped file. Tensors are views of its pages, so loading a rank's share of a model reads only the pages of that
// share, and ranks on one machine share the page cache.
#include "megalith/hf/safetensors_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/io/json_text.h"
#include "megalith/io/mapped_file.h"

namespace megalith::hf {

static_assert(std::endian::native == std::endian::little, "tensors are views of little-endian bytes");

namespace {

// Guesses from its first bytes what a file that is not a safetensors file is, and says what to do.
std::string likely_cause(std::string_view start) {
  if (start.starts_with("version https://git-lfs"))
    return "It is a Git LFS pointer, not the weights; fetch them with `git lfs pull`";
  if (start.starts_with("PK\x03\x04")) return "It looks like a pickle file of torch.save, not like safetensors";
  if (start.starts_with("<")) return "It looks like a web page, not like safetensors; download the file again";
  return "It is not a safetensors file, or it is truncated; download it again";
}

// Returns the length of the header after checking it against the size of the file.
uint64_t header_length(std::string_view file, const std::string& name) {
  check<DataError>(file.size() >= 8,
                   "{}: the file has {} bytes, but a safetensors file begins with 8 bytes that give the length "
                   "of its header. {}",
                   name, file.size(), likely_cause(file));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  check<DataError>(
      length <= kMaxSafetensorsHeaderBytes && length <= file.size() - 8,
      "{}: its first 8 bytes promise a header of {} bytes, but the file has {} bytes and a header at most {}. {}", name,
      length, file.size(), kMaxSafetensorsHeaderBytes, likely_cause(file));
  return length;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), mapping_(std::make_shared<io::MappedFile>(path)) {
  const uint64_t length = header_length(mapping_->text(0, mapping_->size()), path.string());
  data_offset_ = 8 + length;
  header_ = parse_safetensors_header(mapping_->text(8, length), mapping_->size() - data_offset_, path.string());
  // The names belong to header_, which does not change any more.
  positions_.reserve(header_.tensors.size());
  for (size_t i = 0; i < header_.tensors.size(); ++i) positions_.emplace(header_.tensors[i].name, i);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorInfo& SafetensorsFile::get(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) throw DataError(fmt::format("{} holds no tensor {}", path_.string(), io::in_quotes(name)));
  return *info;
}

const std::byte* SafetensorsFile::bytes_of(const TensorInfo& info) const {
  return mapping_->data() + data_offset_ + info.begin;
}

at::Tensor SafetensorsFile::tensor(std::string_view name) const {
  const TensorInfo& info = get(name);
  const auto options = at::TensorOptions().dtype(scalar_type(info.dtype));
  const std::byte* bytes = bytes_of(info);
  // Files of this library are aligned; early versions of the Python package did not pad the header.
  if (reinterpret_cast<uintptr_t>(bytes) % item_bytes(info.dtype) != 0) {
    at::Tensor copy = at::empty(info.shape, options);
    if (info.bytes() > 0) std::memcpy(copy.data_ptr(), bytes, info.bytes());
    return copy;
  }
  // from_blob does not take constant memory; the pages are mapped read-only anyway.
  return at::from_blob(
      const_cast<std::byte*>(bytes), info.shape, [mapping = mapping_](void*) {}, options);
}

void SafetensorsFile::release(std::string_view name) const {
  const TensorInfo& info = get(name);
  // Whole pages only: the first and the last may hold elements of other tensors. The mapping begins at a page boundary.
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = (data_offset_ + info.begin + page - 1) / page * page;
  const uint64_t end = (data_offset_ + info.end) / page * page;
  // Only a hint: if it fails, the process merely uses more memory.
  if (begin < end) ::madvise(const_cast<std::byte*>(mapping_->data() + begin), end - begin, MADV_DONTNEED);
}

}  // namespace megalith::hf
