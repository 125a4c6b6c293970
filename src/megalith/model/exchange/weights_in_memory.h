// Weights in memory, under the names of Hugging Face's files: from a model in any layout to an inference engine or to a
// model of another library, and back, without files.
//
//   WeightStream stream(models, {.dtype = at::kBFloat16});
//   while (const auto batch = stream.next())
//     for (const NamedTensor& each : *batch) engine.load(each.name, each.tensor);
//
// A stream brings every tensor to every rank, a few hundred megabytes at a time: each owner of a rectangle broadcasts
// it, so that a tensor crosses the network once per receiver, bit for bit. Nothing else is gathered.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/model/adapter.h"
#include "megalith/model/pretrained.h"

namespace megalith::model {

// The weights that are meant: the model's, with an adapter merged in; those below the adapter; or the adapter's own,
// under the names of peft's file.
enum class WeightsOf { kModel, kBase, kAdapter };

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  // whole, a copy, on the device of the run; undefined on ranks that do not receive
};

struct StreamOptions {
  WeightsOf of = WeightsOf::kModel;
  std::optional<at::ScalarType> dtype{};  // nullopt = the original checkpoint's; an adapter keeps its own types
  std::optional<int> receiver{};          // the only rank that receives tensors; nullopt = all
  int64_t batch_bytes = 256 << 20;        // tensors that travel together, at least one
};

// All ranks make it with the same options and call next() equally often. While it lives, `models` neither changes nor
// goes: an adapter is merged into its weights from the first to the last batch.
class WeightStream {
 public:
  // Throws ConfigError for a receiver that does not exist, for kAdapter without an adapter, and for an adapter that
  // cannot be merged.
  WeightStream(const VirtualModels& models, const StreamOptions& options);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  // Returns the next tensors, in the order of the files; std::nullopt after the last.
  std::optional<std::vector<NamedTensor>> next();

 private:
  struct Rectangle;
  // Returns the tensors from next_ on that fit into a batch, as one past the last.
  size_t end_of_batch() const;
  void exchange(int owner, size_t end, std::vector<NamedTensor>& batch);

  const StreamOptions options_;
  const comm::Group everyone_;
  std::optional<WithMergedAdapter> merged_;
  ExportedWeights weights_;
  std::vector<std::vector<Rectangle>> of_tensor_;  // rectangles that ranks send, by number of the tensor
  size_t next_ = 0;
};

// A part of a tensor that this rank holds.
struct WeightShard {
  std::string name;
  std::vector<int64_t> shape;   // shape of the whole tensor; kernels of convolutions as matrices (hf::shape_for)
  std::vector<int64_t> offset;  // in each dimension
  at::Tensor tensor;            // a view of the parameter, or a copy where it is kept in another form (fp8)
  int replica = 0;              // number of this copy among the ranks that hold the same
};
// Returns what this rank holds, without communication. Throws ConfigError for kModel with an adapter, which would have
// to be merged first.
std::vector<WeightShard> weight_shards(const VirtualModels& models, WeightsOf of = WeightsOf::kModel);

// A tensor to be loaded, or the parts of it that are at hand.
struct GivenWeight {
  struct Piece {
    std::vector<int64_t> offset;
    at::Tensor tensor;
  };
  std::string name;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;  // one for a whole tensor
};
// The outcome of set_weights.
struct GivenNames {
  std::vector<std::string> missing;     // tensors of the model that were not given; they keep their values
  std::vector<std::string> unexpected;  // names that the model does not have
};
// Fills the model, below its adapter if it has one, or with kAdapter the adapter alone, with tensors of the names and
// shapes of the files; names may lack the prefix that files may lack. Of a tensor that is given in parts, each rank
// needs those that it holds. Collective. Throws ConfigError for kAdapter without an adapter; DataError that lists every
// tensor of another shape or type, every one whose parts do not cover what this rank holds and, with `strict`, all that
// are missing or unexpected; nothing has changed then. Throws DataError, too, for NaN or infinities, on all ranks.
GivenNames set_weights(const VirtualModels& models, const std::vector<GivenWeight>& given, bool strict,
                       WeightsOf of = WeightsOf::kModel);

}  // namespace megalith::model
