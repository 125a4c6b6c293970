// A switch over types, once per value: rows are converted to text only once, on their way to a tokenizer that takes ten
// times as long.
#include <arrow/array.h>
#include <arrow/scalar.h>
#include <arrow/type.h>
#include <arrow/util/float16.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "megalith/data/table/arrow_json_internal.h"
#include "megalith/data/table/base64_internal.h"
#include "megalith/data/table/json_string_internal.h"

namespace megalith::data {
namespace {

using arrow::Type;

template <typename T>
const T& as(const arrow::Array& array) {
  return static_cast<const T&>(array);
}

// Appends the shortest text from which the number can be read back.
template <typename Number>
void append_digits(Number number, std::string& out) {
  char digits[32];
  const std::to_chars_result end = std::to_chars(digits, digits + sizeof(digits), number);
  out.append(digits, end.ptr);
}

// A whole number keeps its point, so that it is read back as a float, as Python prints it.
void append_float(double number, std::string& out) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  const size_t begin = out.size();
  append_digits(number, out);
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";
}

void append_binary(int64_t bytes, std::string& out) {
  out += "{\"binary_bytes\":";
  append_digits(bytes, out);
  out += '}';
}

void append_list(const arrow::Array& values, int64_t begin, int64_t length, std::string& out) {
  out += '[';
  for (int64_t i = 0; i < length; ++i) {
    if (i > 0) out += ',';
    append_value(values, begin + i, out);
  }
  out += ']';
}

template <typename List>
void append_list_of(const arrow::Array& array, int64_t index, std::string& out) {
  const auto& list = as<List>(array);
  append_list(*list.values(), list.value_offset(index), list.value_length(index), out);
}

void append_map(const arrow::MapArray& map, int64_t index, std::string& out) {
  out += '[';
  for (int64_t i = map.value_offset(index); i < map.value_offset(index + 1); ++i) {
    if (i > map.value_offset(index)) out += ',';
    out += '[';
    append_value(*map.keys(), i, out);
    out += ',';
    append_value(*map.items(), i, out);
    out += ']';
  }
  out += ']';
}

// Returns the bytes of a binary value; std::nullopt for other types.
std::optional<std::string_view> binary_of(const arrow::Array& array, int64_t index) {
  switch (array.type_id()) {
    case Type::BINARY:
      return as<arrow::BinaryArray>(array).GetView(index);
    case Type::LARGE_BINARY:
      return as<arrow::LargeBinaryArray>(array).GetView(index);
    case Type::BINARY_VIEW:
      return as<arrow::BinaryViewArray>(array).GetView(index);
    case Type::FIXED_SIZE_BINARY:
      return as<arrow::FixedSizeBinaryArray>(array).GetView(index);
    default:
      return std::nullopt;
  }
}

// `bytes` of a struct that also has a `path` is a file, as the package `datasets` stores images.
bool is_file(const arrow::StructType& type, int field) {
  return type.field(field)->name() == "bytes" && type.GetFieldIndex("path") >= 0;
}

void append_file(std::string_view bytes, std::string& out) {
  out += "{\"base64\":\"";
  append_base64(bytes, out);
  out += "\"}";
}

void append_struct(const arrow::StructArray& array, int64_t index, std::string& out) {
  const auto& type = static_cast<const arrow::StructType&>(*array.type());
  out += '{';
  for (int i = 0; i < array.num_fields(); ++i) {
    if (i > 0) out += ',';
    append_json_string(type.field(i)->name(), out);
    out += ':';
    const std::shared_ptr<arrow::Array> values = array.field(i);  // with the struct's own offset in it
    const bool file = is_file(type, i) && !values->IsNull(index);
    if (const auto bytes = file ? binary_of(*values, index) : std::nullopt)
      append_file(*bytes, out);
    else
      append_value(*values, index, out);
  }
  out += '}';
}

// Dates, times and durations.
void append_printed(const arrow::Array& array, int64_t index, std::string& out) {
  const auto scalar = array.GetScalar(index);
  if (!scalar.ok()) throw std::runtime_error(scalar.status().message());
  append_json_string((*scalar)->ToString(), out);
}

bool has_json_form(const arrow::DataType& type) {
  switch (type.id()) {
    case Type::SPARSE_UNION:
    case Type::DENSE_UNION:
    case Type::RUN_END_ENCODED:
      return false;
    case Type::DICTIONARY:
      return has_json_form(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case Type::EXTENSION:
      return has_json_form(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    default:
      for (const auto& field : type.fields())
        if (!has_json_form(*field->type())) return false;
      return type.id() < Type::MAX_ID;
  }
}

// Types without parts. Returns false for any other.
bool append_simple(const arrow::Array& array, int64_t index, std::string& out) {
  switch (array.type_id()) {
    case Type::BOOL:
      out += as<arrow::BooleanArray>(array).Value(index) ? "true" : "false";
      return true;
    case Type::INT8:
      append_digits(static_cast<int>(as<arrow::Int8Array>(array).Value(index)), out);
      return true;
    case Type::INT16:
      append_digits(as<arrow::Int16Array>(array).Value(index), out);
      return true;
    case Type::INT32:
      append_digits(as<arrow::Int32Array>(array).Value(index), out);
      return true;
    case Type::INT64:
      append_digits(as<arrow::Int64Array>(array).Value(index), out);
      return true;
    case Type::UINT8:
      append_digits(static_cast<unsigned>(as<arrow::UInt8Array>(array).Value(index)), out);
      return true;
    case Type::UINT16:
      append_digits(as<arrow::UInt16Array>(array).Value(index), out);
      return true;
    case Type::UINT32:
      append_digits(as<arrow::UInt32Array>(array).Value(index), out);
      return true;
    case Type::UINT64:
      append_digits(as<arrow::UInt64Array>(array).Value(index), out);
      return true;
    case Type::HALF_FLOAT:
      append_float(arrow::util::Float16::FromBits(as<arrow::HalfFloatArray>(array).Value(index)).ToDouble(), out);
      return true;
    case Type::FLOAT:
      append_float(as<arrow::FloatArray>(array).Value(index), out);
      return true;
    case Type::DOUBLE:
      append_float(as<arrow::DoubleArray>(array).Value(index), out);
      return true;
    case Type::STRING:
      append_json_string(as<arrow::StringArray>(array).GetView(index), out);
      return true;
    case Type::LARGE_STRING:
      append_json_string(as<arrow::LargeStringArray>(array).GetView(index), out);
      return true;
    case Type::STRING_VIEW:
      append_json_string(as<arrow::StringViewArray>(array).GetView(index), out);
      return true;
    default:
      return false;
  }
}

}  // namespace

void check_types(const arrow::Schema& schema) {
  for (const auto& field : schema.fields())
    if (!has_json_form(*field->type()))
      throw std::runtime_error("column \"" + field->name() + "\" has the type " + field->type()->ToString() +
                               ", which cannot be read; write the file without it, or with another type");
}

void append_value(const arrow::Array& array, int64_t index, std::string& out) {
  if (array.IsNull(index)) {
    out += "null";
    return;
  }
  if (append_simple(array, index, out)) return;
  switch (array.type_id()) {
    case Type::LIST:
      return append_list_of<arrow::ListArray>(array, index, out);
    case Type::LARGE_LIST:
      return append_list_of<arrow::LargeListArray>(array, index, out);
    case Type::FIXED_SIZE_LIST:
      return append_list_of<arrow::FixedSizeListArray>(array, index, out);
    case Type::LIST_VIEW:
      return append_list_of<arrow::ListViewArray>(array, index, out);
    case Type::LARGE_LIST_VIEW:
      return append_list_of<arrow::LargeListViewArray>(array, index, out);
    case Type::MAP:
      return append_map(as<arrow::MapArray>(array), index, out);
    case Type::STRUCT:
      return append_struct(as<arrow::StructArray>(array), index, out);
    case Type::DICTIONARY: {
      const auto& dictionary = as<arrow::DictionaryArray>(array);
      return append_value(*dictionary.dictionary(), dictionary.GetValueIndex(index), out);
    }
    case Type::EXTENSION:
      return append_value(*as<arrow::ExtensionArray>(array).storage(), index, out);
    case Type::DECIMAL32:
    case Type::DECIMAL64:
    case Type::DECIMAL128:
    case Type::DECIMAL256: {
      const auto scalar = array.GetScalar(index);
      if (!scalar.ok()) throw std::runtime_error(scalar.status().message());
      out += (*scalar)->ToString();
      return;
    }
    case Type::BINARY:
    case Type::LARGE_BINARY:
    case Type::BINARY_VIEW:
    case Type::FIXED_SIZE_BINARY:
      return append_binary(std::ssize(*binary_of(array, index)), out);
    default:
      return append_printed(array, index, out);
  }
}

}  // namespace megalith::data
