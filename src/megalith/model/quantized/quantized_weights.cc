// A rank quantizes whole tensors, of which it may keep a part: blocks and rows that share a scale, and the mean of
// double quantization, are those of the whole. That is work for every tensor-parallel rank, once per run, and no
// messages.
#include "megalith/model/quantized/quantized_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>
#include <optional>

#include "megalith/base/error.h"

namespace megalith::model {

namespace {

bool all_finite(const at::Tensor& values) {
  const at::Tensor largest = at::linalg_vector_norm(values, std::numeric_limits<double>::infinity());
  return std::isfinite(largest.item<double>());
}

// Returns a tensor that the files hold in fewer bits; std::nullopt for others.
std::optional<ops::QuantizedTensor> stored_weight(const hf::WeightFiles& files, const std::string& name,
                                                  bool transposed, int bits) {
  std::optional<ops::QuantizedTensor> found = files.quantized(name);
  if (!found) return std::nullopt;
  const int in_files = ops::bits_of(*found);
  check<ConfigError>(in_files == bits,
                     "{} is stored in {} bits, and quantization_bit is {}; set quantization_bit {}, or leave it out to"
                     " train on the numbers in the dtype of the run",
                     name, in_files, bits, in_files);
  check<ConfigError>(!transposed, "{} is stored in {} bits and transposed, which is not supported", name, bits);
  return found;
}

// Returns a tensor of the files in the format of the parameter, as a matrix [outputs, inputs].
ops::QuantizedTensor quantized(const hf::TensorMapping& mapping, const hf::WeightFiles& files, const std::string& name,
                               bool transposed, const nn::Parameter& parameter,
                               std::vector<hf::NonFiniteValues>& found) {
  const ops::QuantizedFormat& format = parameter.attached.quantized->format;
  if (auto as_it_is = stored_weight(files, name, transposed, ops::bits_of(format))) return *std::move(as_it_is);
  const at::Tensor source = mapping.values_in(files, name, parameter.value.scalar_type());
  const at::Tensor matrix = transposed ? source.t() : source;
  at::Tensor weight = matrix.to(parameter.value.options().requires_grad(false)).contiguous();
  // As to_quantized() does; here, so that numbers too large for fp16 are reported.
  if (std::holds_alternative<ops::EightBitFormat>(format)) weight = weight.to(at::kHalf);
  if (!all_finite(weight))
    found.push_back({.tensor = name,
                     .file = files.file_of(name).filename().string(),
                     .offset = std::vector<int64_t>(static_cast<size_t>(source.dim()), 0),
                     .count = weight.numel() - at::isfinite(weight).sum().item<int64_t>(),
                     .too_large_for = all_finite(source) ? toString(weight.scalar_type()) : ""});
  return ops::to_quantized(weight, format);
}

}  // namespace

void load_quantized(const nn::Parameter& parameter, const hf::TensorMapping& mapping, const hf::WeightFiles& files,
                    std::vector<hf::NonFiniteValues>& found) {
  const at::NoGradGuard no_grad;
  std::vector<ops::QuantizedMatrix>& matrices = parameter.attached.quantized->parts;
  matrices.clear();
  const at::Tensor shape = at::empty(parameter.value.sizes(), parameter.value.options().device(at::kMeta));
  std::string name;  // names the tensor `whole`; parts that a file fuses follow one another
  ops::QuantizedTensor whole;
  for (const parallel::ShardedTensor& part : parameter.sharded(shape)) {
    const hf::TensorMapping::Place place = mapping.place(part);
    const hf::FileTensor& file = *place.file;
    check(!file.stacked && !file.channelwise && !file.is_kernel, "{} is not stored as a matrix", file.name);
    if (const std::string next = mapping.name_in(files, file.name); next != name) {
      if (!name.empty()) files.release(name);
      name = next;
      whole = quantized(mapping, files, name, file.transposed, parameter, found);
    }
    const size_t row = file.transposed ? 1 : 0, column = 1 - row;
    const ops::MatrixRectangle where{.first_row = place.offset[row],
                                     .rows = part.local.size(0),
                                     .first_column = place.offset[column],
                                     .columns = part.local.size(1),
                                     .whole_columns = file.shape[column]};
    matrices.push_back(ops::cut_quantized(whole, where, parameter.value.device()));
  }
  if (!name.empty()) files.release(name);
}

std::string not_quantized(const ModelConfig& config, int bits) {
  if (!config.moe) return "";
  return fmt::format(
      "quantization_bit {}: the weights of experts, which transformers stacks into tensors that are not linear "
      "layers, stay in the dtype of the model, as in bitsandbytes",
      bits);
}

}  // namespace megalith::model
