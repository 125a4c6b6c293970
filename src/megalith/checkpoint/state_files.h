// StateFiles: reads optimizer and random states from a checkpoint folder. Each rank asks for its own rectangles, so the
// layout need not be the one that saved them.
#pragma once

#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/io/file_io.h"
#include "megalith/optim/optimizer.h"

namespace megalith::checkpoint {

// The files of one stem, whether they hold tensors whole or in pieces (pieces.h). A rectangle whose elements are
// contiguous in the file (all of them, if the layout is the one that saved) is read straight into its place; others are
// copied out of the mapped file. Not thread-safe: files with pieces are opened when they are first needed.
class StateFiles : public optim::StateSource {
 public:
  // Among files with pieces, the one written by rank `reader` is searched first: if the layout is unchanged, it holds
  // most of what that rank asks for. Throws a DataError if the checkpoint does not hold `stem`, or if one of its files
  // is missing or broken.
  StateFiles(const std::filesystem::path& folder, const Manifest& manifest, const std::string& stem, int reader = 0);

  std::string name() const override { return folder_.string(); }
  std::vector<Tensor> tensors() const override;
  // Throws a DataError if the tensor does not exist, or if no file holds a part of it.
  void read(const parallel::ShardedTensor& wanted) const override;

  // Returns the raw bytes of a whole tensor.
  std::string bytes(const std::string& name) const;

 private:
  // An open file: mapped for copies, and as a descriptor for direct reads.
  struct File {
    hf::SafetensorsFile tensors;
    io::FileHandle handle;
    uint64_t data_offset;  // first byte of the tensor data
  };
  // A rectangle of a tensor, or a whole tensor.
  struct Piece {
    const File* file;
    const hf::TensorInfo* info;
    std::vector<int64_t> offset;
  };
  // A tensor of the checkpoint, with the pieces known so far.
  struct Whole {
    std::string name;
    hf::Dtype dtype;
    std::vector<int64_t> shape;
    std::vector<Piece> pieces;  // found in the files opened so far
  };
  // Returns the entry of a tensor, added if it is new.
  Whole& add_tensor(const std::string& name, hf::Dtype dtype, const std::vector<int64_t>& shape) const;
  void open(const std::filesystem::path& path) const;
  bool read_directly(const File& file, const hf::TensorInfo& info, const parallel::ShardedTensor& wanted) const;
  int64_t read_piece(const Piece& piece, const parallel::ShardedTensor& wanted) const;

  std::filesystem::path folder_;
  bool in_pieces_ = false;
  mutable std::vector<std::unique_ptr<File>> files_;
  mutable std::vector<Whole> wholes_;
  mutable std::unordered_map<std::string, size_t> places_;  // index into wholes_, by name
  mutable std::deque<std::filesystem::path> unopened_;      // files with pieces, in the order of the search
};

}  // namespace megalith::checkpoint
