#include <set>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/hf/safetensors_header.h"

namespace megalith::fuzz {
namespace {

// Checks what a reader of the file relies on.
void check_promises(const hf::SafetensorsHeader& header, uint64_t data_bytes) {
  uint64_t covered = 0;
  std::set<std::string> names;
  for (const hf::TensorInfo& tensor : header.tensors) {
    check(names.insert(tensor.name).second, "two tensors of one name");
    check(tensor.begin == covered, "a hole or an overlap");
    check(hf::tensor_bytes(tensor.dtype, tensor.shape) == tensor.bytes(), "a wrong number of bytes");
    covered = tensor.end;
  }
  check(covered == data_bytes, "the tensors do not cover the data");
}

}  // namespace

void safetensors_header(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  const auto data_bytes = static_cast<uint64_t>(parse_int(input.substr(0, line)).value_or(0));
  input.remove_prefix(std::min(line + 1, input.size()));
  try {
    check_promises(hf::parse_safetensors_header(input, data_bytes, "fuzz.safetensors"), data_bytes);
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with("fuzz.safetensors: "), "a message that does not name the file");
  }
}

}  // namespace megalith::fuzz
