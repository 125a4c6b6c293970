// Pieces: tensors that lie in a checkpoint as the rectangles that ranks held, each rank's in a file of its own.
//
//   optimizer-rank-00007.safetensors     what rank 7 has written, one rectangle after the other: tensors named
//                                        NAME@4096x14336+0x1792, the global shape and where the rectangle begins
//   optimizer.pieces.json                {"tensors": [{"name": NAME, "dtype": "F32", "shape": [4096, 14336]}, …]}
//
// The names are on disks: they do not change within a version of the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/weight_writer.h"

namespace megalith::checkpoint {

struct PieceName {
  std::string tensor;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;  // in each dimension
  bool operator==(const PieceName&) const = default;

  std::string text() const;
  // Nothing for the name of a whole tensor, which has no '@'. Throws DataError for a piece that makes no sense.
  static std::optional<PieceName> parse(std::string_view text);
};

// "optimizer-rank-00007": the stem of a rank's file.
std::string piece_stem(std::string_view stem, int rank);
// "optimizer.pieces.json"
std::string piece_list_name(std::string_view stem);

// The list of whole tensors. Reading throws DataError for anything else; nothing where there is no such file: the
// stem's tensors are whole.
void write_piece_list(const std::filesystem::path& folder, std::string_view stem,
                      const std::vector<hf::WeightSpec>& tensors);
std::optional<std::vector<hf::WeightSpec>> read_piece_list(const std::filesystem::path& folder, std::string_view stem);

}  // namespace megalith::checkpoint
