// Headers come from files of unknown origin, so nothing in them is trusted: every field is checked for its type and
// range before it is used, and every product for overflow. Reader collects all problems instead of throwing at the
// first one, so that one message shows the whole damage. Sorting the tensors by their bytes makes the check for holes
// and overlaps a single pass.
#include "megalith/hf/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"

namespace megalith::hf {
namespace {

constexpr size_t kMaxDims = 64;  // limit of ATen's tensors
// A damaged header has thousands of wrong fields; twenty show the kind of damage.
constexpr size_t kShownProblems = 20;
constexpr const char* kMetadataKey = "__metadata__";

// Returns a non-negative integer that fits into 63 bits; std::nullopt for anything else.
std::optional<int64_t> count(const io::Json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<int64_t>();
}

std::string range(uint64_t begin, uint64_t end) { return fmt::format("[{}, {}]", begin, end); }

// Reads a header and collects every problem. A tensor with an unreadable field is left out of the result.
class Reader {
 public:
  Reader(uint64_t data_bytes, uint64_t header_bytes) : data_bytes_(data_bytes), header_bytes_(header_bytes) {}

  SafetensorsHeader read(const io::Json& root);
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  template <typename... Args>
  void problem(const std::string& tensor, fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(
        fmt::format("tensor {}: {}", io::in_quotes(tensor), fmt::format(format, std::forward<Args>(args)...)));
  }

  void read_metadata(const io::Json& value, SafetensorsHeader& header);
  void read_tensor(const std::string& name, const io::Json& value, SafetensorsHeader& header);
  bool read_dtype(const io::Json& value, TensorInfo& tensor);
  bool read_shape(const io::Json& value, TensorInfo& tensor);
  bool read_offsets(const io::Json& value, TensorInfo& tensor);
  void check_size(const TensorInfo& tensor);
  void check_cover(const std::vector<TensorInfo>& tensors);

  const uint64_t data_bytes_, header_bytes_;
  std::vector<std::string> problems_;
};

SafetensorsHeader Reader::read(const io::Json& root) {
  SafetensorsHeader header;
  // Names are distinct by construction: the JSON parser refuses a key that occurs twice.
  header.tensors.reserve(root.size());
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadataKey)
      read_metadata(value, header);
    else
      read_tensor(name, value, header);
  }
  std::ranges::sort(header.tensors, {}, [](const TensorInfo& t) { return std::tie(t.begin, t.end, t.name); });
  // A tensor that was left out would look like a hole in the data.
  if (problems_.empty()) check_cover(header.tensors);
  return header;
}

void Reader::read_metadata(const io::Json& value, SafetensorsHeader& header) {
  if (!value.is_object()) {
    problems_.push_back(
        fmt::format("{} is {}; it must be an object of strings", kMetadataKey, io::json_in_words(value)));
    return;
  }
  for (const auto& [key, text] : value.items()) {
    if (text.is_string())
      header.metadata.emplace(key, text.get_ref<const std::string&>());
    else
      problems_.push_back(
          fmt::format("{}: {} is {}; it must be a string", kMetadataKey, io::in_quotes(key), io::json_in_words(text)));
  }
}

void Reader::read_tensor(const std::string& name, const io::Json& value, SafetensorsHeader& header) {
  if (!value.is_object()) {
    problem(name, "its entry is {}; it must be an object with dtype, shape and data_offsets", io::json_in_words(value));
    return;
  }
  // Collected field by field; only a complete tensor enters the result.
  TensorInfo tensor;
  tensor.name = name;
  bool complete = true;
  // All three fields are read even if one is wrong, so that the message names each problem.
  const auto field = [&](const char* key, bool (Reader::*read_field)(const io::Json&, TensorInfo&)) {
    const auto found = value.find(key);
    if (found == value.end()) {
      problem(name, "{} is missing", key);
      complete = false;
    } else if (!(this->*read_field)(*found, tensor)) {
      complete = false;
    }
  };
  field("dtype", &Reader::read_dtype);
  field("shape", &Reader::read_shape);
  field("data_offsets", &Reader::read_offsets);
  if (!complete) return;
  check_size(tensor);
  header.tensors.push_back(std::move(tensor));
}

bool Reader::read_dtype(const io::Json& value, TensorInfo& tensor) {
  const auto dtype = value.is_string() ? dtype_from_name(value.get_ref<const std::string&>()) : std::nullopt;
  if (dtype)
    tensor.dtype = *dtype;
  else
    problem(tensor.name, "dtype is {}; these are supported: {}", io::json_in_words(value), dtype_names());
  return dtype.has_value();
}

// [] is a scalar, and sizes of 0 are allowed.
bool Reader::read_shape(const io::Json& value, TensorInfo& tensor) {
  if (!value.is_array() || value.size() > kMaxDims) {
    problem(tensor.name, "shape is {}; it must be a list of at most {} sizes", io::json_in_words(value), kMaxDims);
    return false;
  }
  for (const io::Json& item : value) {
    const auto size = count(item);
    if (!size) {
      problem(tensor.name, "shape is {}; its sizes must be integers from 0 to 2^63-1", io::json_in_words(value));
      return false;
    }
    tensor.shape.push_back(*size);
  }
  return true;
}

bool Reader::read_offsets(const io::Json& value, TensorInfo& tensor) {
  const auto begin = value.is_array() && value.size() == 2 ? count(value[0]) : std::nullopt;
  const auto end = begin ? count(value[1]) : std::nullopt;
  if (!end || *begin > *end) {
    problem(tensor.name, "data_offsets is {}; it must be [begin, end] with 0 <= begin <= end",
            io::json_in_words(value));
    return false;
  }
  tensor.begin = static_cast<uint64_t>(*begin);
  tensor.end = static_cast<uint64_t>(*end);
  return true;
}

// The bytes that data_offsets give must be exactly those that the shape needs.
void Reader::check_size(const TensorInfo& tensor) {
  const auto needed = tensor_bytes(tensor.dtype, tensor.shape);
  const auto shape = fmt::format("shape [{}] of {}", fmt::join(tensor.shape, ","), name(tensor.dtype));
  if (!needed)
    problem(tensor.name, "{} is larger than any file", shape);
  else if (*needed != tensor.bytes())
    problem(tensor.name, "{} needs {} bytes, but data_offsets {} hold {}", shape, *needed,
            range(tensor.begin, tensor.end), tensor.bytes());
}

// The tensors are sorted by their bytes: each must begin where the one before it ends.
void Reader::check_cover(const std::vector<TensorInfo>& tensors) {
  uint64_t covered = 0;
  const TensorInfo* last = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin < covered)
      problem(tensor.name, "data_offsets {} overlap those of {}, {}", range(tensor.begin, tensor.end),
              io::in_quotes(last->name), range(last->begin, last->end));
    else if (tensor.begin > covered)
      problem(tensor.name, "data_offsets {} leave a gap: no tensor covers bytes {}", range(tensor.begin, tensor.end),
              range(covered, tensor.begin));
    if (tensor.end >= covered) {
      covered = tensor.end;
      last = &tensor;
    }
  }
  // The last tensor must end with the file. A file that is too short was not downloaded completely.
  const uint64_t before = 8 + header_bytes_;
  if (covered > data_bytes_)
    problem(last->name,
            "it ends at byte {} of the data, but there are only {}: the header promises a file of {} bytes, and "
            "this one has {}. It is cut short; download it again",
            covered, data_bytes_, before + covered, before + data_bytes_);
  else if (covered < data_bytes_)
    problems_.push_back(
        fmt::format("{} bytes follow the last tensor: the header promises a file of {} bytes, and this one "
                    "has {}. It is damaged; download it again",
                    data_bytes_ - covered, before + covered, before + data_bytes_));
}

}  // namespace

// item_bytes · Π shape, or 0 if a size is 0.
std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  // Sizes of 0 count as 1 while the product is checked, because ATen computes strides in this way, and these must not
  // overflow either.
  auto product = static_cast<int64_t>(item_bytes(dtype));
  bool empty = false;
  for (const int64_t size : shape) {
    empty |= size == 0;
    if (size < 0 || __builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) return std::nullopt;
  }
  return empty ? 0 : static_cast<uint64_t>(product);
}

SafetensorsHeader parse_safetensors_header(std::string_view header_json, uint64_t data_bytes,
                                           const std::string& file_name) {
  check<DataError>(header_json.size() <= kMaxSafetensorsHeaderBytes,
                   "{}: the header has {} bytes; at most {} are allowed", file_name, header_json.size(),
                   kMaxSafetensorsHeaderBytes);
  check<DataError>(
      // The reference parser insists on this, too: no byte-order mark and no whitespace in front.
      header_json.starts_with('{'),
      "{}: the header does not begin with '{{': this is not a safetensors file, or it is damaged; download it again",
      file_name);
  // Everything from here on is well-formed JSON; its contents are still unknown.
  const io::Json root = io::parse_json(header_json, file_name + ": header");
  Reader reader(data_bytes, header_json.size());
  SafetensorsHeader header = reader.read(root);

  const auto& problems = reader.problems();
  if (problems.empty()) return header;
  std::string text = fmt::format(
      "{}: {}", file_name,
      fmt::join(problems.begin(),
                problems.begin() + static_cast<std::ptrdiff_t>(std::min(problems.size(), kShownProblems)), "\n  "));
  if (problems.size() > kShownProblems) text += fmt::format("\n  … ({} problems in all)", problems.size());
  throw DataError(text);
}

}  // namespace megalith::hf
