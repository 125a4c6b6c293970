// Parses the header of a safetensors file: its tensors and their places. Text in, table out: no files, no libtorch.
//
//   file    8 bytes: length n of the header, little endian
//           n bytes: JSON, {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}, padded with spaces;
//                    the key __metadata__ holds an object of strings instead
//           the data: the tensors' elements in row-major order, without holes and overlaps
//
// https://github.com/huggingface/safetensors describes the format. This parser is at least as strict as that library.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/dtype.h"

namespace megalith::hf {

// The format's limit for n.
constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// One tensor and the place of its bytes.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes [begin, end) of the data
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

// The contents of a header.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// Parses and checks a header that is followed by `data_bytes` of data. The result can be relied on: names are distinct,
// no product overflows, every tensor has as many bytes as its shape and dtype need, and together the tensors cover the
// data exactly. Throws one DataError that names the file and every tensor and field that is wrong.
SafetensorsHeader parse_safetensors_header(std::string_view header_json, uint64_t data_bytes,
                                           const std::string& file_name);

// Returns the bytes of a tensor; std::nullopt when the number does not fit into 63 bits.
std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape);

}  // namespace megalith::hf
