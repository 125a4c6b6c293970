// Element types by name and size, without libtorch. One table serves every lookup, so a new type is one new row.
#include "megalith/hf/dtype.h"

#include <array>
#include <vector>

#include "megalith/base/text.h"

namespace megalith::hf {
namespace {

struct Row {
  Dtype dtype;
  std::string_view name;
  size_t item_bytes;
};

// In the order of the enumeration. The names are part of the file format.
constexpr std::array kRows = {
    Row{Dtype::kF64, "F64", 8},        Row{Dtype::kF32, "F32", 4},        Row{Dtype::kF16, "F16", 2},
    Row{Dtype::kBF16, "BF16", 2},      Row{Dtype::kF8E4M3, "F8_E4M3", 1}, Row{Dtype::kF8E5M2, "F8_E5M2", 1},
    Row{Dtype::kF8E8M0, "F8_E8M0", 1}, Row{Dtype::kI64, "I64", 8},        Row{Dtype::kI32, "I32", 4},
    Row{Dtype::kI16, "I16", 2},        Row{Dtype::kI8, "I8", 1},          Row{Dtype::kU64, "U64", 8},
    Row{Dtype::kU32, "U32", 4},        Row{Dtype::kU16, "U16", 2},        Row{Dtype::kU8, "U8", 1},
    Row{Dtype::kBool, "BOOL", 1},
};

// The table has the order of the enumeration, so the value is the index.
const Row& row(Dtype dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view name(Dtype dtype) { return row(dtype).name; }

size_t item_bytes(Dtype dtype) { return row(dtype).item_bytes; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const Row& candidate : kRows)
    if (candidate.name == name) return candidate.dtype;
  return std::nullopt;
}

std::string dtype_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return list_in_words(names, names.size());
}

}  // namespace megalith::hf
