// StateFiles: the optimizer's state and the random states in a checkpoint folder, for any layout: whoever reads asks
// for its own rectangles.
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
// neighbours in the file, which are all of them where the layout is the one that saved, is read straight into its
// place; others are copied out of the mapped file. One thread: files with pieces are opened when they are needed.
class StateFiles : public optim::StateSource {
 public:
  // Of files with pieces that of rank `reader` is looked into first: in the layout that saved it holds most of what
  // that rank wants. Throws DataError when the checkpoint does not hold `stem`, or a file of it is missing or broken.
  StateFiles(const std::filesystem::path& folder, const Manifest& manifest, const std::string& stem, int reader = 0);

  std::string name() const override { return folder_.string(); }
  std::vector<Tensor> tensors() const override;
  // Throws DataError for a tensor that is not there, or a part of which no file holds.
  void read(const parallel::ShardedTensor& wanted) const override;

  // The elements of a whole tensor of bytes.
  std::string bytes(const std::string& name) const;

 private:
  struct File {
    hf::SafetensorsFile tensors;
    io::FileHandle handle;
    uint64_t data_offset;  // of the tensors' bytes
  };
  // A rectangle of a tensor; a whole tensor is one.
  struct Piece {
    const File* file;
    const hf::TensorInfo* info;
    std::vector<int64_t> offset;
  };
  struct Whole {
    std::string name;
    hf::Dtype dtype;
    std::vector<int64_t> shape;
    std::vector<Piece> pieces;  // that have been found so far
  };
  Whole& add_tensor(const std::string& name, hf::Dtype dtype, const std::vector<int64_t>& shape) const;
  void open(const std::filesystem::path& path) const;
  bool read_directly(const File& file, const hf::TensorInfo& info, const parallel::ShardedTensor& wanted) const;
  int64_t read_piece(const Piece& piece, const parallel::ShardedTensor& wanted) const;

  std::filesystem::path folder_;
  bool in_pieces_ = false;
  mutable std::vector<std::unique_ptr<File>> files_;
  mutable std::vector<Whole> wholes_;
  mutable std::unordered_map<std::string, size_t> places_;  // in wholes_, by name
  mutable std::deque<std::filesystem::path> unopened_;      // files with pieces
};

}  // namespace megalith::checkpoint
