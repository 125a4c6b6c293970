// A tensor is described by a call that Python would make, and its storage by a "persistent id":
//
//   torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)
//   torch._utils._rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype)   bytes as storage
//   torch._utils._rebuild_parameter(tensor, requires_grad, hooks)
//   storage: ("storage", torch.FloatStorage, "0", "cpu", elements)            the member data/0 of the archive
#include "megalith/hf/foreign/torch_file.h"

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstring>
#include <limits>

#include "megalith/base/error.h"
#include "megalith/hf/foreign/pickle_reader.h"
#include "megalith/io/json_text.h"

namespace megalith::hf {

namespace {

using Kind = PickleValue::Kind;

struct TypeNames {
  std::string_view dtype, storage;
  at::ScalarType type;
};
constexpr std::array kTypes{TypeNames{"torch.float32", "torch.FloatStorage", at::kFloat},
                            TypeNames{"torch.float64", "torch.DoubleStorage", at::kDouble},
                            TypeNames{"torch.float16", "torch.HalfStorage", at::kHalf},
                            TypeNames{"torch.bfloat16", "torch.BFloat16Storage", at::kBFloat16},
                            TypeNames{"torch.int64", "torch.LongStorage", at::kLong},
                            TypeNames{"torch.int32", "torch.IntStorage", at::kInt},
                            TypeNames{"torch.int16", "torch.ShortStorage", at::kShort},
                            TypeNames{"torch.int8", "torch.CharStorage", at::kChar},
                            TypeNames{"torch.uint8", "torch.ByteStorage", at::kByte},
                            TypeNames{"torch.bool", "torch.BoolStorage", at::kBool},
                            TypeNames{"torch.float8_e4m3fn", "", at::kFloat8_e4m3fn},
                            TypeNames{"torch.float8_e5m2", "", at::kFloat8_e5m2}};

// Returns the number of elements up to the last one; std::nullopt when a size or stride is negative or
// the number does not fit.
std::optional<int64_t> extent(const TorchTensor& tensor) {
  if (tensor.shape.size() != tensor.strides.size() || tensor.offset < 0) return std::nullopt;
  int64_t last = tensor.offset, numel = 1;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    int64_t step = 0;
    if (tensor.shape[d] < 0 || tensor.strides[d] < 0 || __builtin_mul_overflow(numel, tensor.shape[d], &numel))
      return std::nullopt;
    if (tensor.shape[d] == 0) continue;
    if (__builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &step) ||
        __builtin_add_overflow(last, step, &last))
      return std::nullopt;
  }
  if (numel == 0) return 0;
  return last < std::numeric_limits<int64_t>::max() ? std::optional(last + 1) : std::nullopt;
}

}  // namespace

std::optional<std::vector<int64_t>> int_list(const PickleValue* value) {
  if (value && value->is_made_by("torch.Size")) value = value->at(0);
  if (!value || !(value->is(Kind::kTuple) || value->is(Kind::kList))) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const PickleValue* item : value->items) {
    if (!item->is(Kind::kInt)) return std::nullopt;
    numbers.push_back(item->integer);
  }
  return numbers;
}

std::optional<at::ScalarType> torch_dtype(std::string_view name) {
  for (const TypeNames& each : kTypes)
    if (each.dtype == name || each.storage == name) return each.type;
  return std::nullopt;
}

TorchFile::TorchFile(const std::filesystem::path& path)
    : TorchFile(std::make_shared<const io::MappedFile>(path), 0, std::numeric_limits<uint64_t>::max(), path.string()) {}

TorchFile::TorchFile(std::shared_ptr<const io::MappedFile> file, uint64_t offset, uint64_t bytes, std::string name)
    : file_(std::move(file)),
      name_(std::move(name)),
      zip_(
          [&] {
            check<DataError>(offset <= file_->size(), "{}: the file ends before its byte {}", name_, offset);
            const std::string_view part = file_->text(offset, std::min(bytes, file_->size() - offset));
            check<DataError>(is_zip(part),
                             "{}: not a file of torch.save in the form that PyTorch writes since 1.6, a zip archive; "
                             "load it with PyTorch and save it again",
                             name_);
            return part;
          }(),
          name_),
      pickle_(read_pickle(zip_.content("data.pkl"), name_)) {
  const auto order = zip_.members().find("byteorder");
  check<DataError>(order == zip_.members().end() || order->second == "little",
                   "{}: numbers are stored as {}; only \"little\" can be read", name_,
                   order == zip_.members().end() ? "" : io::in_quotes(order->second));
}

std::optional<TorchTensor> TorchFile::describe(const PickleValue& given) const {
  const PickleValue* inner = &given;
  while (inner->is_made_by("torch._utils._rebuild_parameter") && inner->at(0)) inner = inner->at(0);
  const PickleValue& value = *inner;
  const bool by_bytes = value.is_made_by("torch._utils._rebuild_tensor_v3");
  if (!by_bytes && !value.is_made_by("torch._utils._rebuild_tensor_v2")) return std::nullopt;
  const PickleValue *storage = value.at(0), *offset = value.at(1);
  const auto shape = int_list(value.at(2)), strides = int_list(value.at(3));
  const PickleValue* id = storage && storage->is(Kind::kPersistent) ? storage->args : nullptr;
  const PickleValue *kind = id ? id->at(1) : nullptr, *key = id ? id->at(2) : nullptr;
  const PickleValue* type = by_bytes ? value.at(6) : kind;
  check<DataError>(offset && offset->is(Kind::kInt) && shape && strides && key && key->is(Kind::kText) && type &&
                       type->is(Kind::kGlobal),
                   "{}: a tensor whose description is damaged", name_);
  const auto dtype = torch_dtype(type->text);
  check<DataError>(dtype.has_value(), "{}: a tensor of type {}, which is not read", name_, io::in_quotes(type->text));
  TorchTensor found{"data/" + key->text, *dtype, offset->integer, *shape, *strides};
  const auto needed = extent(found);
  const uint64_t stored = zip_.content(found.storage).size() / c10::elementSize(found.dtype);
  check<DataError>(needed && static_cast<uint64_t>(*needed) <= stored,
                   "{}: a tensor of [{}] needs more than the {} elements that {} holds", name_,
                   fmt::join(found.shape, ", "), stored, io::in_quotes(found.storage));
  return found;
}

at::Tensor TorchFile::tensor(const TorchTensor& described) const {
  const std::string_view bytes = zip_.content(described.storage);
  const auto options = at::TensorOptions().dtype(described.dtype);
  const size_t item = c10::elementSize(described.dtype);
  const auto elements = static_cast<int64_t>(bytes.size() / item);
  at::Tensor storage;
  if (reinterpret_cast<uintptr_t>(bytes.data()) % item == 0) {
    // from_blob does not take constant memory; the pages are mapped read-only anyway.
    storage = at::from_blob(
        const_cast<char*>(bytes.data()), {elements}, [file = file_](void*) {}, options);
  } else {
    storage = at::empty({elements}, options);
    std::memcpy(storage.data_ptr(), bytes.data(), static_cast<size_t>(elements) * item);
  }
  return storage.as_strided(described.shape, described.strides, described.offset);
}

}  // namespace megalith::hf
