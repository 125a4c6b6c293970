#include "megalith/hf/four_bit_files.h"

#include <ATen/ATen.h>

#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/io/json_reader.h"

namespace megalith::hf {

namespace {

constexpr std::string_view kState = ".quant_state.bitsandbytes__";

}  // namespace

std::vector<std::string> FourBitEntry::parts(std::string_view state) const {
  std::vector<std::string> names{std::string(state), name + ".absmax", name + ".quant_map"};
  if (nested) names.insert(names.end(), {name + ".nested_absmax", name + ".nested_quant_map"});
  return names;
}

std::string four_bit_name(std::string_view state) {
  const size_t end = state.find(kState);
  return end == std::string_view::npos ? "" : std::string(state.substr(0, end));
}

FourBitEntry read_four_bit_entry(const std::string& name, const at::Tensor& state, const std::string& folder) {
  const at::Tensor bytes = state.contiguous();
  check<DataError>(bytes.scalar_type() == at::kByte, "{}: the description of {} in 4 bits is not made of bytes", folder,
                   name);
  const std::string text(reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()),
                         static_cast<size_t>(bytes.numel()));
  const io::JsonFile file = io::parse_json_file(text, folder + ": the quant_state of " + name);
  const io::JsonFields fields = file.fields();
  FourBitEntry entry{.name = name};
  entry.shape = fields.required<std::vector<int64_t>>("shape");
  const auto dtype = fields.required<std::string>("dtype");
  if (dtype == "float32") {
    entry.dtype = Dtype::kF32;
  } else if (dtype == "bfloat16") {
    entry.dtype = Dtype::kBF16;
  } else if (dtype == "float16") {
    entry.dtype = Dtype::kF16;
  } else {
    fields.refuse("dtype", "be float32, bfloat16 or float16");
  }
  entry.block = fields.positive<int64_t>("blocksize");
  if (entry.block < 2 || !std::has_single_bit(static_cast<uint64_t>(entry.block)))
    fields.refuse("blocksize", "be a power of two");
  entry.nested = fields.has("nested_blocksize");
  if (!entry.nested) return entry;
  if (fields.required<int64_t>("nested_blocksize") != ops::kNestedBlock) fields.refuse("nested_blocksize", "be 256");
  entry.offset = static_cast<float>(fields.required<double>("nested_offset"));
  return entry;
}

ops::FourBitTensor read_four_bit_tensor(const FourBitEntry& entry,
                                        const std::function<at::Tensor(const std::string&)>& tensor) {
  const int64_t n = std::accumulate(entry.shape.begin(), entry.shape.end(), int64_t{1}, std::multiplies<>());
  const auto read = [&](const std::string& name, int64_t size, at::ScalarType type) {
    at::Tensor t = tensor(name).reshape(-1);
    if (type == at::kFloat && at::isFloatingType(t.scalar_type())) t = t.to(at::kFloat);
    check<DataError>(t.numel() == size && t.scalar_type() == type,
                     "{} holds {} elements of type {}; {} in 4 bits, of {} numbers, needs {} of type {}", name,
                     t.numel(), toString(t.scalar_type()), entry.name, n, size, toString(type));
    return t.contiguous();
  };
  const int64_t scales = (n + entry.block - 1) / entry.block;
  // Codes may be stored as another type, with the same bytes.
  at::Tensor codes = tensor(entry.name).contiguous();
  if (codes.scalar_type() != at::kByte) codes = codes.view(-1).view(at::kByte);
  codes = codes.reshape(-1);
  check<DataError>(codes.numel() == (n + 1) / 2, "{} holds {} bytes; {} numbers in 4 bits need {}", entry.name,
                   codes.numel(), n, (n + 1) / 2);
  ops::FourBitTensor result{.block = entry.block, .numel = n, .codes = codes, .offset = entry.offset};
  const at::Tensor values = read(entry.name + ".quant_map", 16, at::kFloat);
  for (size_t i = 0; i < result.values.size(); ++i) result.values[i] = values.const_data_ptr<float>()[i];
  result.scales = read(entry.name + ".absmax", scales, entry.nested ? at::kByte : at::kFloat);
  if (!entry.nested) return result;
  result.nested = read(entry.name + ".nested_absmax", (scales + ops::kNestedBlock - 1) / ops::kNestedBlock, at::kFloat);
  result.map = read(entry.name + ".nested_quant_map", 256, at::kFloat);
  return result;
}

}  // namespace megalith::hf
