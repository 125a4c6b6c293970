// Pieces: tensors stored in a checkpoint as the rectangles that ranks held, one file per rank.
//
//   optimizer-rank-00007.safetensors     the rectangles that rank 7 wrote, one after the other, as tensors named
//                                        NAME@4096x14336+0x1792: the global shape and the offset of the rectangle
//   optimizer.pieces.json                {"tensors": [{"name": NAME, "dtype": "F32", "shape": [4096, 14336]}, …]}
//
// The names are stored on disks: they must not change within a version of the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/weight_writer.h"

namespace megalith::checkpoint {

// The parsed form of NAME@4096x14336+0x1792.
struct PieceName {
  std::string tensor;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;  // in each dimension
  bool operator==(const PieceName&) const = default;

  // Returns the name in its stored form.
  std::string text() const;
  // Returns std::nullopt for the name of a whole tensor, which has no '@'. Throws a DataError for a malformed piece.
  static std::optional<PieceName> parse(std::string_view text);
};

// "optimizer-rank-00007": the stem of a rank's file.
std::string piece_stem(std::string_view stem, int rank);
// "optimizer.pieces.json"
std::string piece_list_name(std::string_view stem);

// Write and read the list of tensors that are stored in pieces. read_piece_list returns std::nullopt if there is no
// such file, which means that the stem's tensors are stored whole, and throws a DataError for a malformed one.
void write_piece_list(const std::filesystem::path& folder, std::string_view stem,
                      const std::vector<hf::WeightSpec>& tensors);
std::optional<std::vector<hf::WeightSpec>> read_piece_list(const std::filesystem::path& folder, std::string_view stem);

}  // namespace megalith::checkpoint
