#include "weights.h"

#include <torch/csrc/Dtype.h>

#include "megalith/base/error.h"

namespace megalith::python {

namespace {

model::WeightsOf weights_named(const std::string& of) {
  if (of == "model") return model::WeightsOf::kModel;
  if (of == "base") return model::WeightsOf::kBase;
  check<ConfigError>(of == "adapter",
                     "weights of \"{}\" were asked for; there are those of \"model\", \"base\" and"
                     " \"adapter\"",
                     of);
  return model::WeightsOf::kAdapter;
}

std::optional<at::ScalarType> dtype_of(const py::object& dtype) {
  if (dtype.is_none()) return std::nullopt;
  check<ConfigError>(THPDtype_Check(dtype.ptr()), "dtype is a {}; give a torch.dtype, such as torch.bfloat16",
                     py::str(py::type::of(dtype).attr("__name__")).cast<std::string>());
  return reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
}

py::list next_batch(model::WeightStream& stream) {
  std::optional<std::vector<model::NamedTensor>> batch;
  {
    const py::gil_scoped_release unlocked;
    batch = stream.next();
  }
  if (!batch) throw py::stop_iteration();
  py::list result;
  for (const auto& [name, tensor] : *batch)
    result.append(py::make_tuple(name, tensor.defined() ? py::cast(tensor) : py::none()));
  return result;
}

}  // namespace

void bind_weights(py::module_& module) {
  py::class_<model::WeightStream, std::shared_ptr<model::WeightStream>>(module, "WeightStream")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &next_batch);
}

std::shared_ptr<model::WeightStream> stream_weights(LoadedModel& model, const std::string& of, const py::object& dtype,
                                                    std::optional<int> receiver, int64_t batch_bytes) {
  const model::StreamOptions options{
      .of = weights_named(of), .dtype = dtype_of(dtype), .receiver = receiver, .batch_bytes = batch_bytes};
  const py::gil_scoped_release unlocked;
  return model.stream(options);
}

py::list weight_shards(LoadedModel& model, const std::string& of) {
  std::vector<model::WeightShard> shards;
  {
    const py::gil_scoped_release unlocked;
    shards = model.shards(weights_named(of));
  }
  py::list result;
  for (const model::WeightShard& shard : shards)
    result.append(py::make_tuple(shard.name, py::tuple(py::cast(shard.shape)), py::tuple(py::cast(shard.offset)),
                                 shard.tensor, shard.replica));
  return result;
}

py::tuple set_weights(LoadedModel& model, const py::list& given, bool strict, const std::string& of) {
  const model::WeightsOf kind = weights_named(of);
  std::vector<model::GivenWeight> weights;
  for (const py::handle each : given) {
    const auto [name, shape, pieces] = each.cast<std::tuple<std::string, std::vector<int64_t>, py::list>>();
    model::GivenWeight weight{name, shape, {}};
    for (const py::handle piece : pieces) {
      const auto [offset, tensor] = piece.cast<std::pair<std::vector<int64_t>, at::Tensor>>();
      weight.pieces.push_back({offset, tensor.detach()});
    }
    weights.push_back(std::move(weight));
  }
  model::GivenNames names;
  {
    const py::gil_scoped_release unlocked;
    names = model.set_weights(weights, strict, kind);
  }
  return py::make_tuple(names.missing, names.unexpected);
}

}  // namespace megalith::python
