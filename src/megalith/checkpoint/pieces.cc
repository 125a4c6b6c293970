// A rank that writes its rectangles one after the other into its own file is faster than one that scatters them over
// shared files, above all on network file systems. The price is that a reader must put tensors together again, so each
// piece carries its place in its name, and a list beside the files names all tensors.
#include "megalith/checkpoint/pieces.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_reader.h"

namespace megalith::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxPieceListBytes = 1'000'000'000;  // refuse absurd files before reading them into memory

// Parses "4096x14336"; an empty text has no dimensions. Returns std::nullopt unless all are numbers >= 0.
std::optional<std::vector<int64_t>> parse_extents(std::string_view text) {
  std::vector<int64_t> extents;
  if (text.empty()) return extents;
  for (const std::string& part : split(text, 'x')) {
    const auto number = parse_int(part);
    if (!number || *number < 0) return std::nullopt;
    extents.push_back(*number);
  }
  return extents;
}

// One entry of the list; sizes are checked, since buffers are allocated from them.
hf::WeightSpec read_listed_tensor(const io::Json& entry, const std::string& file_name) {
  const io::JsonFile file(entry, file_name);
  const io::JsonFields fields = file.fields();
  hf::WeightSpec spec{.name = fields.required<std::string>("name"), .dtype = hf::Dtype::kF32, .shape = {}};
  const auto dtype = hf::dtype_from_name(fields.required<std::string>("dtype"));
  check<DataError>(dtype.has_value(), "{}: {} has an unknown \"dtype\"", file_name, spec.name);
  spec.dtype = *dtype;
  spec.shape = fields.required<std::vector<int64_t>>("shape");
  check<DataError>(std::ranges::all_of(spec.shape, [](int64_t size) { return size >= 0; }),
                   "{}: {} has the impossible shape [{}]", file_name, spec.name, fmt::join(spec.shape, ","));
  return spec;
}

}  // namespace

std::string PieceName::text() const {
  return fmt::format("{}@{}+{}", tensor, fmt::join(global_shape, "x"), fmt::join(offset, "x"));
}

// NAME@SHAPE+OFFSET; a scalar has both parts empty ("scalar@+").
std::optional<PieceName> PieceName::parse(std::string_view text) {
  const size_t at = text.rfind('@');  // the last one: the tensor's own name may contain '@'
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view shape_and_offset = text.substr(at + 1);
  const size_t plus = shape_and_offset.find('+');
  const auto shape = parse_extents(shape_and_offset.substr(0, plus));
  const auto offset = plus == std::string_view::npos ? std::nullopt : parse_extents(shape_and_offset.substr(plus + 1));
  check<DataError>(shape && offset && shape->size() == offset->size(),
                   "\"{}\" is not the name of a piece of a tensor, such as NAME@4096x14336+0x1792", text);
  return PieceName{std::string(text.substr(0, at)), *shape, *offset};
}

std::string piece_stem(std::string_view stem, int rank) { return fmt::format("{}-rank-{:05}", stem, rank); }
std::string piece_list_name(std::string_view stem) { return fmt::format("{}.pieces.json", stem); }

void write_piece_list(const fs::path& folder, std::string_view stem, const std::vector<hf::WeightSpec>& tensors) {
  io::Json list = io::Json::array();
  for (const hf::WeightSpec& tensor : tensors)
    list.push_back({{"name", tensor.name}, {"dtype", hf::name(tensor.dtype)}, {"shape", tensor.shape}});
  io::write_text_file(folder / piece_list_name(stem), io::Json{{"tensors", std::move(list)}}.dump(1) + "\n");
}

// Without the list, a reader would have to open every rank's file to know which tensors there are.
std::optional<std::vector<hf::WeightSpec>> read_piece_list(const fs::path& folder, std::string_view stem) {
  const fs::path path = folder / piece_list_name(stem);
  if (!fs::is_regular_file(path)) return std::nullopt;
  const io::Json root = io::parse_json(io::read_text_file(path, kMaxPieceListBytes), path.string());
  check<DataError>(root.is_object() && root.contains("tensors") && root["tensors"].is_array(),
                   "{}: \"tensors\" is not a list", path.string());
  std::vector<hf::WeightSpec> tensors;
  for (const io::Json& entry : root["tensors"]) tensors.push_back(read_listed_tensor(entry, path.string()));
  return tensors;
}

}  // namespace megalith::checkpoint
