// The layout of all files is a function of the list of tensors alone, so every rank computes the byte where each
// element belongs and writes it there with pwrite; ranks do not talk to each other, and no rank ever holds a whole
// tensor.
//
//   rectangle of a tensor -> runs of elements that are adjacent in the file -> pieces of kHotBytes -> pwrite
//
// A rectangle that is on the CPU, contiguous and of the right type is written from where it lies; everything else is
// cut along its first dimensions until it fits into one buffer of kPieceBytes, so memory stays bounded.
#include "megalith/hf/weight_writer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/io/json_text.h"

namespace megalith::hf {
namespace {

// Size of the pieces given to on_write and then written: small enough that the write finds the bytes, which a checksum
// has just read, in the processor's cache.
constexpr uint64_t kHotBytes = 1 << 20;

// Lets the disk start at once, so that sync() has less to wait for. Only a hint: sync() writes whatever is left.
void begin_writing_out(const io::FileHandle& file, uint64_t offset, uint64_t bytes) {
  ::sync_file_range(file.descriptor(), static_cast<off64_t>(offset), static_cast<off64_t>(bytes),
                    SYNC_FILE_RANGE_WRITE);
}

// Returns the first bytes of a file: the length of the header and the header, padded so that the data is aligned to 8.
std::string header_bytes(const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata) {
  io::Json::object_t root;
  // Append to the vector below the ordered map: the map's own insertion compares with all keys, which is quadratic.
  root.reserve(tensors.size() + 1);
  if (!metadata.empty()) root.emplace_back("__metadata__", io::Json(metadata));
  for (const TensorInfo& t : tensors)
    root.emplace_back(t.name,
                      io::Json{{"dtype", name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {t.begin, t.end}}});
  std::string text = io::Json(std::move(root)).dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

// Throws InternalError unless the rectangle lies inside the tensor and its type can be converted: floats to floats
// only.
void check_rectangle(const TensorInfo& info, at::IntArrayRef offset, const at::Tensor& rectangle) {
  const auto sizes = rectangle.sizes();
  bool inside = offset.size() == info.shape.size() && sizes.size() == info.shape.size();
  for (size_t d = 0; inside && d < offset.size(); ++d)
    inside = offset[d] >= 0 && sizes[d] <= info.shape[d] && offset[d] <= info.shape[d] - sizes[d];
  check(inside, "a rectangle [{}] at [{}] does not lie inside tensor {} of shape [{}]", fmt::join(sizes, ","),
        fmt::join(offset, ","), info.name, fmt::join(info.shape, ","));
  const auto planned = scalar_type(info.dtype);
  check(rectangle.scalar_type() == planned ||
            (at::isFloatingType(rectangle.scalar_type()) && at::isFloatingType(planned)),
        "tensor {} is planned as {}, but {} was given", info.name, name(info.dtype),
        c10::toString(rectangle.scalar_type()));
}

// Writes a contiguous rectangle with one call for each run of elements that are adjacent in the file as well.
class RunWriter {
 public:
  using Write = std::function<void(uint64_t offset, const std::byte* data, uint64_t bytes)>;
  RunWriter(Write write, uint64_t data_offset, const TensorInfo& info)
      : write_(std::move(write)), info_(info), base_(data_offset + info.begin), item_(item_bytes(info.dtype)) {}

  void write(at::IntArrayRef offset, at::IntArrayRef sizes, const std::byte* data) const {
    // Dimensions from `dim` on form one run: the rectangle spans all of them completely, except perhaps `dim` itself.
    size_t dim = sizes.size();
    uint64_t run = item_;
    while (dim > 0 && (dim == sizes.size() || sizes[dim] == info_.shape[dim]))
      run *= static_cast<uint64_t>(sizes[--dim]);
    uint64_t runs = 1;
    for (size_t d = 0; d < dim; ++d) runs *= static_cast<uint64_t>(sizes[d]);
    std::vector<int64_t> at = offset.vec();
    for (uint64_t i = 0; i < runs; ++i, data += run) {
      write_(place(at), data, run);
      for (size_t d = dim; d-- > 0;) {
        if (++at[d] < offset[d] + sizes[d]) break;
        at[d] = offset[d];
      }
    }
  }

 private:
  // Returns the offset in the file of the element with these indices (row-major).
  uint64_t place(const std::vector<int64_t>& at) const {
    uint64_t index = 0;
    for (size_t d = 0; d < at.size(); ++d)
      index = index * static_cast<uint64_t>(info_.shape[d]) + static_cast<uint64_t>(at[d]);
    return base_ + index * item_;
  }

  const Write write_;
  const TensorInfo& info_;
  const uint64_t base_;
  const uint64_t item_;
};

}  // namespace

std::vector<int64_t> shape_for(const std::vector<int64_t>& shape, size_t dims) {
  if (dims != 2 || shape.size() <= 2) return shape;
  return {shape[0], std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>())};
}

WeightWriter::WeightWriter(std::filesystem::path folder, const std::vector<WeightSpec>& tensors,
                           WeightWriterOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  split(tensors);
  for (size_t i = 0; i < shards_.size(); ++i) lay_out(shards_[i], i);
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (size_t j = 0; j < shards_[i].tensors.size(); ++j) {
      const TensorInfo& info = shards_[i].tensors[j];
      check<ConfigError>(places_.emplace(info.name, Place{i, j}).second,
                         "tensor {} appears twice in the list of tensors to write", info.name);
    }
  }
}

// Fills one shard after the other; an empty shard takes a tensor of any size.
void WeightWriter::split(const std::vector<WeightSpec>& tensors) {
  shards_.emplace_back();
  for (const WeightSpec& spec : tensors) {
    const auto bytes = tensor_bytes(spec.dtype, spec.shape);
    check<ConfigError>(bytes.has_value(), "tensor {} has the impossible shape [{}]", spec.name,
                       fmt::join(spec.shape, ","));
    check<ConfigError>(spec.name != "__metadata__", "the name {} is reserved by the file format", spec.name);
    const bool full = shards_.back().data_bytes + *bytes > options_.max_shard_bytes;
    if (full && !shards_.back().tensors.empty()) shards_.emplace_back();
    Shard& shard = shards_.back();
    shard.tensors.push_back({spec.name, spec.dtype, spec.shape, 0, *bytes});
    shard.data_bytes += *bytes;
    total_bytes_ += *bytes;
  }
}

// Assigns the bytes of a shard. Larger elements come first, so that every tensor is aligned to its element.
void WeightWriter::lay_out(Shard& shard, size_t number) const {
  std::ranges::stable_sort(shard.tensors, std::greater<>(), [](const TensorInfo& t) { return item_bytes(t.dtype); });
  uint64_t at = 0;
  for (TensorInfo& tensor : shard.tensors) {
    tensor.begin = at;
    tensor.end = at += tensor.end;
  }
  shard.header = header_bytes(shard.tensors, options_.metadata);
  check<ConfigError>(
      shard.header.size() - 8 <= kMaxSafetensorsHeaderBytes,
      "{} tensors are too many for one file: their names need {} bytes, and at most {} are allowed. Use a "
      "smaller max_shard_bytes",
      shard.tensors.size(), shard.header.size(), kMaxSafetensorsHeaderBytes);
  shard.file_name = shards_.size() == 1
                        ? options_.stem + ".safetensors"
                        : fmt::format("{}-{:05}-of-{:05}.safetensors", options_.stem, number + 1, shards_.size());
}

void WeightWriter::create_files() const {
  for (size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    const io::FileHandle file = io::FileHandle::create(folder_ / shard.file_name);
    // Room for everything now: a full disk is noticed before hours of writing, and ranks may write in any order.
    file.allocate(shard.header.size() + shard.data_bytes);
    if (options_.on_write)
      options_.on_write(i, 0, reinterpret_cast<const std::byte*>(shard.header.data()), shard.header.size());
    file.write_at(0, shard.header.data(), shard.header.size());
  }
}

void WeightWriter::write(std::string_view name, const at::Tensor& tensor) {
  write(name, std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 0), tensor);
}

void WeightWriter::write(std::string_view name, at::IntArrayRef offset, const at::Tensor& rectangle) {
  const at::NoGradGuard no_grad;
  const auto found = places_.find(std::string(name));
  check(found != places_.end(), "tensor {} is not in the list that the writer was made with", name);
  const Shard& shard = shards_[found->second.shard];
  TensorInfo info = shard.tensors[found->second.tensor];
  info.shape = shape_for(info.shape, static_cast<size_t>(rectangle.dim()));
  check_rectangle(info, offset, rectangle);
  if (rectangle.numel() == 0) return;
  std::vector<int64_t> at = offset.vec();
  write_part(info, found->second.shard, at, rectangle.detach());
}

// Writes data that is ready in memory as it is; cuts the rest along its first dimensions until it fits the buffer.
void WeightWriter::write_part(const TensorInfo& info, size_t shard, std::vector<int64_t>& offset,
                              const at::Tensor& part) {
  const bool ready = part.device().is_cpu() && part.scalar_type() == scalar_type(info.dtype) && part.is_contiguous();
  const uint64_t bytes = static_cast<uint64_t>(part.numel()) * item_bytes(info.dtype);
  if (ready || bytes <= kPieceBytes) {
    const at::Tensor host = ready ? part : staged(part, info);
    const io::FileHandle& file = file_of(shard);
    const auto write = [&](uint64_t at, const std::byte* data, uint64_t size) {
      for (uint64_t done = 0; done < size; done += kHotBytes) {
        const uint64_t piece = std::min(kHotBytes, size - done);
        if (options_.on_write) options_.on_write(shard, at + done, data + done, piece);
        file.write_at(at + done, data + done, piece);
        if (size >= kHotBytes) begin_writing_out(file, at + done, piece);
      }
    };
    RunWriter(write, shards_[shard].header.size(), info)
        .write(offset, part.sizes(), static_cast<const std::byte*>(host.const_data_ptr()));
    return;
  }
  // Cuts along the first dimension of more than one row, so that each piece is a run in the file as long as possible.
  int64_t dim = 0;
  while (part.size(dim) == 1) ++dim;
  const int64_t first = offset[static_cast<size_t>(dim)], size = part.size(dim);
  const uint64_t row_bytes = bytes / static_cast<uint64_t>(size);
  const auto rows_per_piece = static_cast<int64_t>(std::max<uint64_t>(1, kPieceBytes / row_bytes));
  for (int64_t row = 0; row < size; row += rows_per_piece) {
    offset[static_cast<size_t>(dim)] = first + row;
    write_part(info, shard, offset, part.narrow(dim, row, std::min(rows_per_piece, size - row)));
  }
  offset[static_cast<size_t>(dim)] = first;
}

// Returns a copy of the part in the buffer: on the host, of the planned type, contiguous. Valid until the next call.
at::Tensor WeightWriter::staged(const at::Tensor& part, const TensorInfo& info) {
  // Copies from a device are faster into pinned memory.
  if (!buffer_.defined() || (part.is_cuda() && !buffer_.is_pinned()))
    buffer_ = at::empty({static_cast<int64_t>(kPieceBytes)},
                        at::TensorOptions().dtype(at::kByte).pinned_memory(part.is_cuda()));
  const at::ScalarType type = scalar_type(info.dtype);
  at::Tensor host = at::from_blob(buffer_.data_ptr(), part.sizes(), at::TensorOptions().dtype(type));
  // A transposed matrix on the host, alone or as one of a stack: ATen transposes block by block only if the source is
  // contiguous, and otherwise element by element.
  const at::Tensor matrix = part.dim() == 3 && part.size(0) == 1 ? part.squeeze(0) : part;
  if (part.device().is_cpu() && matrix.dim() == 2 && matrix.stride(0) < matrix.stride(1))
    host.view(matrix.sizes()).copy_(matrix.t().to(type).contiguous().t());
  else
    host.copy_(part);
  return host;
}

const io::FileHandle& WeightWriter::file_of(size_t shard) {
  io::FileHandle& file = files_[shard];
  if (!file.is_open()) file = io::FileHandle::open_for_writing(folder_ / shards_[shard].file_name);
  return file;
}

// Closing the files afterwards lets another rank or process replace them.
void WeightWriter::sync() {
  for (const auto& [shard, file] : files_) file.sync();
  files_.clear();
}

void WeightWriter::write_index() const {
  if (shards_.size() == 1) return;
  // Sorted by name, as transformers writes it.
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, place] : places_) weight_map.emplace(name, shards_[place.shard].file_name);
  io::Json index;
  index["metadata"]["total_size"] = total_bytes_;
  index["weight_map"] = weight_map;
  io::write_text_file(folder_ / (options_.stem + ".safetensors.index.json"), index.dump(2) + "\n");
}

std::vector<std::string> WeightWriter::file_names() const {
  std::vector<std::string> names;
  for (const Shard& shard : shards_) names.push_back(shard.file_name);
  return names;
}

std::vector<uint64_t> WeightWriter::file_bytes() const {
  std::vector<uint64_t> bytes;
  for (const Shard& shard : shards_) bytes.push_back(shard.header.size() + shard.data_bytes);
  return bytes;
}

}  // namespace megalith::hf
