// WeightWriter: writes tensors into safetensors shards, from many ranks at once and without a gather.
//
//   WeightWriter writer(folder, specs);     // all ranks, with the same list: the plan is a function of the list alone
//   if (rank == 0) writer.create_files();   // headers, and room for the data
//   barrier
//   writer.write(name, {first_row, 0}, rows);  // any rank, any rectangle, straight to its place in the file
//   writer.sync();                          // each rank that wrote
//   barrier
//   if (rank == 0) writer.write_index();
//
// The files are those of transformers: model.safetensors, or model-00001-of-00003.safetensors, … with
// model.safetensors.index.json.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/hf/dtype.h"
#include "megalith/hf/safetensors_header.h"
#include "megalith/io/file_io.h"

namespace megalith::hf {

// A tensor that is going to be written.
struct WeightSpec {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
};

// Options of a writer; those of transformers by default.
struct WeightWriterOptions {
  // Largest size of a file's tensors in bytes; a single larger tensor gets a file of its own. As "5GB" in transformers.
  uint64_t max_shard_bytes = 5'000'000'000;
  std::string stem = "model";
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  // Receives every byte that this object writes into file number `file`, before it is written: for checksums.
  std::function<void(size_t file, uint64_t offset, const std::byte* data, uint64_t bytes)> on_write{};
};

// A part of a planned tensor that a rank holds.
struct HeldRectangle {
  std::string tensor;
  std::vector<int64_t> offset;  // in each dimension
  at::Tensor data;
  int replica = 0;  // number of this copy, from 0, among the ranks that hold the same rectangle
  // Set where the elements are made when they are written: returns them. `data` then has their shape and dtype only.
  std::function<at::Tensor()> load{};

  at::Tensor elements() const { return load ? load() : data; }
};

// Returns the shape of a tensor as its rectangles of `dims` dimensions see it: for two dimensions of a tensor with
// more, such as the kernel of a convolution, the matrix [first dimension, product of the others] of the same bytes.
std::vector<int64_t> shape_for(const std::vector<int64_t>& shape, size_t dims);

// Used by one thread at a time.
class WeightWriter {
 public:
  // Only plans; touches no file. Files are filled in the order of the list; inside a file larger elements come first,
  // so that every tensor is aligned. Throws ConfigError when a name appears twice or is reserved, or when a size is
  // impossible.
  WeightWriter(std::filesystem::path folder, const std::vector<WeightSpec>& tensors, WeightWriterOptions options = {});

  // Creates every file with its header and its full size, replacing existing files. Called by one rank before any rank
  // writes. Here and below DataError names the file and the system's reason (disk full, …).
  void create_files() const;

  // Writes the elements of `rectangle`, which begins at `offset` in each dimension. It may be of any floating-point
  // type when the planned one is (otherwise of the planned type), on any device and with any strides; data that must be
  // converted or copied from a device goes through a buffer of kPieceBytes. A rectangle of two dimensions may belong to
  // a tensor of more, seen as a matrix (shape_for). Throws InternalError when the rectangle does not lie inside the
  // tensor.
  void write(std::string_view name, at::IntArrayRef offset, const at::Tensor& rectangle);
  // Writes the whole tensor.
  void write(std::string_view name, const at::Tensor& tensor);

  // Returns when everything that this object wrote is on the disk, and closes the files.
  void sync();

  // Writes the index if there are several files. Called by one rank.
  void write_index() const;

  std::vector<std::string> file_names() const;           // names of the weight files, in order
  std::vector<uint64_t> file_bytes() const;              // size of each file, header and data
  uint64_t total_bytes() const { return total_bytes_; }  // bytes of all tensors, without headers

  static constexpr size_t kPieceBytes = 16 << 20;

 private:
  struct Shard {
    std::vector<TensorInfo> tensors;  // in the order of their bytes
    std::string file_name;
    std::string header;  // the 8 bytes of its length, and the JSON padded to a multiple of 8
    uint64_t data_bytes = 0;
  };
  // Indices into shards_ and into the tensors of that shard.
  struct Place {
    size_t shard, tensor;
  };

  // The plan: which tensors go into which file, then where in it.
  void split(const std::vector<WeightSpec>& tensors);
  void lay_out(Shard& shard, size_t number) const;
  // `offset` is restored before it returns.
  void write_part(const TensorInfo& info, size_t shard, std::vector<int64_t>& offset, const at::Tensor& part);
  at::Tensor staged(const at::Tensor& part, const TensorInfo& info);
  const io::FileHandle& file_of(size_t shard);

  std::filesystem::path folder_;
  WeightWriterOptions options_;
  std::vector<Shard> shards_;
  std::unordered_map<std::string, Place> places_;
  uint64_t total_bytes_ = 0;

  std::map<size_t, io::FileHandle> files_;  // by shard; opened by the first write to it
  at::Tensor buffer_;                       // kPieceBytes on the host; allocated when first needed
};

}  // namespace megalith::hf
