#include "megalith/checkpoint/state_files.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/ops/cpu_parallel.h"

namespace megalith::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kPieceBytes = 1 << 20;

// 0 or the system's error; a file that ends too early is EIO.
int read_piece(int descriptor, char* to, uint64_t offset, int64_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor, to, static_cast<size_t>(bytes), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EIO;
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= got;
  }
  return 0;
}

// By all threads of this rank.
void read_range(const hf::FileHandle& file, char* to, uint64_t offset, int64_t bytes) {
  std::atomic<int> failure = 0;
  ops::parallel_for((bytes + kPieceBytes - 1) / kPieceBytes, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kPieceBytes, end = std::min(bytes, last * kPieceBytes);
    const int error = read_piece(file.descriptor(), to + begin, offset + static_cast<uint64_t>(begin), end - begin);
    if (error != 0) failure = error;
  });
  check<DataError>(failure == 0, "cannot read {}: {}", file.path().string(), std::strerror(failure));
}

// The first element of the rectangle among those of the whole tensor, when its elements are neighbours there.
std::optional<int64_t> start_of_run(const std::vector<int64_t>& shape, const parallel::ShardedTensor& wanted) {
  int64_t start = 0;
  bool one_run = true, partial = false;  // behind the first dimension that is not a single index all are taken whole
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t size = wanted.local.size(static_cast<int64_t>(d));
    start = start * shape[d] + wanted.offset[d];
    one_run = one_run && (!partial || size == shape[d]);
    partial = partial || size != 1;
  }
  return one_run ? std::optional(start) : std::nullopt;
}

}  // namespace

StateFiles::StateFiles(const fs::path& folder, const Manifest& manifest, const std::string& stem) : folder_(folder) {
  check<DataError>(manifest.has(stem), "{} does not hold \"{}\": it was saved without", folder.string(), stem);
  for (const FileRecord& record : manifest.files) {
    if (!is_tensor_file(record.name, stem)) continue;
    const fs::path path = folder / record.name;
    files_.emplace_back(new File{hf::SafetensorsFile(path), hf::FileHandle::open_for_reading(path), 0});
    File& file = *files_.back();
    uint64_t data_bytes = 0;
    for (const hf::TensorInfo& info : file.tensors.tensors()) data_bytes += info.bytes();
    file.data_offset = file.handle.size() - data_bytes;  // a header that was accepted covers the rest exactly
  }
}

const StateFiles::File& StateFiles::file_of(const std::string& name) const {
  for (const auto& file : files_)
    if (file->tensors.find(name) != nullptr) return *file;
  throw DataError(fmt::format("{} holds no tensor {}", folder_.string(), name));
}

std::vector<optim::StateSource::Tensor> StateFiles::tensors() const {
  std::vector<Tensor> all;
  for (const auto& file : files_)
    for (const hf::TensorInfo& info : file->tensors.tensors()) all.push_back({info.name, info.shape});
  return all;
}

bool StateFiles::read_directly(const File& file, const parallel::ShardedTensor& wanted) const {
  const hf::TensorInfo& info = *file.tensors.find(wanted.name);
  const at::Tensor& to = wanted.local;
  const bool same = to.device().is_cpu() && to.is_contiguous() && to.scalar_type() == hf::scalar_type(info.dtype);
  const auto start = same ? start_of_run(info.shape, wanted) : std::nullopt;
  if (!start) return false;
  const uint64_t from = file.data_offset + info.begin + static_cast<uint64_t>(*start) * to.element_size();
  read_range(file.handle, static_cast<char*>(to.data_ptr()), from, static_cast<int64_t>(to.nbytes()));
  return true;
}

void StateFiles::read(const parallel::ShardedTensor& wanted) const {
  const at::NoGradGuard no_grad;
  const File& file = file_of(wanted.name);
  const std::vector<int64_t>& shape = file.tensors.find(wanted.name)->shape;
  check(static_cast<int64_t>(shape.size()) == wanted.local.dim(), "tensor {} has {} dimensions there and {} here",
        wanted.name, shape.size(), wanted.local.dim());
  for (size_t d = 0; d < shape.size(); ++d)
    check(wanted.offset[d] >= 0 && wanted.offset[d] + wanted.local.size(static_cast<int64_t>(d)) <= shape[d],
          "a rectangle does not lie inside of tensor {} of {}", wanted.name, folder_.string());
  if (wanted.local.numel() == 0 || read_directly(file, wanted)) return;
  at::Tensor part = file.tensors.tensor(wanted.name);
  for (int64_t d = 0; d < part.dim(); ++d)
    part = part.narrow(d, wanted.offset[static_cast<size_t>(d)], wanted.local.size(d));
  at::Tensor(wanted.local).copy_(part);
  file.tensors.release(wanted.name);
}

std::string StateFiles::bytes(const std::string& name) const {
  const at::Tensor tensor = file_of(name).tensors.tensor(name);
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace megalith::checkpoint
