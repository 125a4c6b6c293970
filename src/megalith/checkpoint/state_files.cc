// Reading rectangles out of files that hold whole tensors or other rectangles.
//
// read() intersects the wanted rectangle with the pieces found so far and opens further files only while elements are
// missing. Pieces never overlap (a save checks that), so counting elements is enough to know when all are there.
//
// Each intersection is read in one of two ways: with pread, by all threads of the rank, straight into the destination,
// if its elements are contiguous in the file and need no conversion; otherwise through the mapping and a strided copy.
#include "megalith/checkpoint/state_files.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/checkpoint/pieces.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/ops/kernel/cpu_parallel.h"

namespace megalith::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kPieceBytes = 1 << 20;  // unit of work of one thread

// Returns 0 or the system's error code; EIO if the file ends too early.
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

// Reads a range of a file with all threads of this rank. Threads must not throw, so the last error is kept.
void read_range(const io::FileHandle& file, char* to, uint64_t offset, int64_t bytes) {
  std::atomic<int> failure = 0;
  ops::parallel_for((bytes + kPieceBytes - 1) / kPieceBytes, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kPieceBytes, end = std::min(bytes, last * kPieceBytes);
    const int error = read_piece(file.descriptor(), to + begin, offset + static_cast<uint64_t>(begin), end - begin);
    if (error != 0) failure = error;
  });
  check<DataError>(failure == 0, "cannot read {}: {}", file.path().string(), std::strerror(failure));
}

// Returns the flat index of the rectangle's first element if its elements are contiguous in the whole tensor;
// std::nullopt otherwise.
std::optional<int64_t> start_of_run(const std::vector<int64_t>& shape, const parallel::ShardedTensor& wanted) {
  int64_t start = 0;
  bool one_run = true, partial = false;  // after the first dimension with more than one index, all must be whole
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t size = wanted.local.size(static_cast<int64_t>(d));
    start = start * shape[d] + wanted.offset[d];
    one_run = one_run && (!partial || size == shape[d]);
    partial = partial || size != 1;
  }
  return one_run ? std::optional(start) : std::nullopt;
}

}  // namespace

StateFiles::StateFiles(const fs::path& folder, const Manifest& manifest, const std::string& stem, int reader)
    : folder_(folder) {
  check<DataError>(manifest.has(stem), "{} does not hold \"{}\": it was saved without it", folder.string(), stem);
  std::vector<fs::path> paths;
  for (const FileRecord& record : manifest.files)
    if (is_tensor_file(record.name, stem)) paths.push_back(folder / record.name);
  const auto listed = read_piece_list(folder, stem);
  if (!listed) {
    for (const fs::path& path : paths) open(path);
    return;
  }
  in_pieces_ = true;
  for (const hf::WeightSpec& spec : *listed) add_tensor(spec.name, spec.dtype, spec.shape);
  const std::string own = piece_stem(stem, reader) + ".safetensors";
  std::ranges::stable_partition(paths, [&](const fs::path& path) { return path.filename() == own; });
  unopened_.assign(paths.begin(), paths.end());
}

// The same tensor may be in the list of pieces and in several files; the first entry decides its shape.
StateFiles::Whole& StateFiles::add_tensor(const std::string& name, hf::Dtype dtype,
                                          const std::vector<int64_t>& shape) const {
  const auto [entry, is_new] = places_.emplace(name, wholes_.size());
  if (is_new) wholes_.push_back({name, dtype, shape, {}});
  return wholes_[entry->second];
}

// Opens a file and enters its tensors, or pieces of tensors, into wholes_.
void StateFiles::open(const fs::path& path) const {
  const auto& file = files_.emplace_back(
      new File{hf::SafetensorsFile(path), io::FileHandle::open_for_reading(path), /*data_offset=*/0});
  uint64_t data_bytes = 0;
  for (const hf::TensorInfo& info : file->tensors.tensors()) {
    data_bytes += info.bytes();
    const auto piece = in_pieces_ ? PieceName::parse(info.name) : std::nullopt;
    const PieceName place = piece ? *piece : PieceName{info.name, info.shape, std::vector<int64_t>(info.shape.size())};
    Whole& whole = add_tensor(place.tensor, info.dtype, place.global_shape);
    bool inside =
        whole.shape == place.global_shape && whole.dtype == info.dtype && info.shape.size() == whole.shape.size();
    for (size_t d = 0; inside && d < whole.shape.size(); ++d)
      inside = place.offset[d] <= whole.shape[d] - info.shape[d];
    check<DataError>(inside, "{}: {} [{}] is not a part of tensor {} [{}]", path.string(), info.name,
                     fmt::join(info.shape, ","), whole.name, fmt::join(whole.shape, ","));
    whole.pieces.push_back({file.get(), &info, place.offset});
  }
  file->data_offset = file->handle.size() - data_bytes;  // SafetensorsFile has checked that tensors fill all the rest
}

std::vector<optim::StateSource::Tensor> StateFiles::tensors() const {
  std::vector<Tensor> all;
  for (const Whole& whole : wholes_) all.push_back({whole.name, whole.shape});
  return all;
}

// Returns false if the rectangle cannot be read with pread: on a device, strided, of another dtype, or not contiguous.
bool StateFiles::read_directly(const File& file, const hf::TensorInfo& info,
                               const parallel::ShardedTensor& wanted) const {
  const at::Tensor& to = wanted.local;
  const bool same = to.device().is_cpu() && to.is_contiguous() && to.scalar_type() == hf::scalar_type(info.dtype);
  const auto start = same ? start_of_run(info.shape, wanted) : std::nullopt;
  if (!start) return false;
  const uint64_t from = file.data_offset + info.begin + static_cast<uint64_t>(*start) * to.element_size();
  read_range(file.handle, static_cast<char*>(to.data_ptr()), from, static_cast<int64_t>(to.nbytes()));
  return true;
}

// Reads the elements that the piece and `wanted` have in common and returns how many there are.
int64_t StateFiles::read_piece(const Piece& piece, const parallel::ShardedTensor& wanted) const {
  parallel::ShardedTensor part{wanted.name, piece.info->shape, {}, wanted.local, 0};
  for (size_t d = 0; d < piece.offset.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    const int64_t begin = std::max(piece.offset[d], wanted.offset[d]);
    const int64_t end = std::min(piece.offset[d] + piece.info->shape[d], wanted.offset[d] + wanted.local.size(dim));
    if (begin >= end) return 0;
    part.offset.push_back(begin - piece.offset[d]);
    part.local = part.local.narrow(dim, begin - wanted.offset[d], end - begin);
  }
  if (!read_directly(*piece.file, *piece.info, part)) {
    at::Tensor from = piece.file->tensors.tensor(piece.info->name);
    for (int64_t d = 0; d < from.dim(); ++d)
      from = from.narrow(d, part.offset[static_cast<size_t>(d)], part.local.size(d));
    part.local.copy_(from);
    piece.file->tensors.release(piece.info->name);  // or a large file would stay resident as a whole
  }
  return part.local.numel();
}

void StateFiles::read(const parallel::ShardedTensor& wanted) const {
  const at::NoGradGuard no_grad;
  const auto place = places_.find(wanted.name);
  check<DataError>(place != places_.end(), "{} holds no tensor {}", folder_.string(), wanted.name);
  const size_t number = place->second;
  const std::vector<int64_t> shape = wholes_[number].shape;
  check(static_cast<int64_t>(shape.size()) == wanted.local.dim(), "tensor {} has {} dimensions there and {} here",
        wanted.name, shape.size(), wanted.local.dim());
  for (size_t d = 0; d < shape.size(); ++d)
    check(wanted.offset[d] >= 0 && wanted.offset[d] + wanted.local.size(static_cast<int64_t>(d)) <= shape[d],
          "a rectangle does not lie inside tensor {} of {}", wanted.name, folder_.string());
  int64_t found = 0;  // elements read; pieces do not overlap
  for (size_t next = 0; found < wanted.local.numel(); ++next) {
    for (; next >= wholes_[number].pieces.size() && !unopened_.empty(); unopened_.pop_front()) open(unopened_.front());
    check<DataError>(next < wholes_[number].pieces.size(), "{} holds only {} of the {} elements of a part of tensor {}",
                     folder_.string(), found, wanted.local.numel(), wanted.name);
    found += read_piece(wholes_[number].pieces[next], wanted);
  }
}

// For random states, whose bytes only the generator understands.
std::string StateFiles::bytes(const std::string& name) const {
  const auto place = places_.find(name);
  check<DataError>(place != places_.end(), "{} holds no tensor {}", folder_.string(), name);
  const Whole& whole = wholes_[place->second];
  const at::Tensor tensor = at::empty(whole.shape, hf::scalar_type(whole.dtype));
  read({name, whole.shape, std::vector<int64_t>(whole.shape.size()), tensor, 0});
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace megalith::checkpoint
