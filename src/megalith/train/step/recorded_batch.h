// RecordedBatch: the micro-batch that graphs read, and the question whether another one can take its place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "megalith/data/micro_batch.h"
#include "megalith/model/gpt_model.h"

namespace megalith::train {

// Everything about a micro-batch that is baked into the kernels of a graph: sizes, addresses and numbers that the host
// computes with.
struct BatchKey {
  std::vector<int64_t> cumulative;                     // lengths of the sequences, as offsets
  at::Tensor positions;                                // int64 [t], on the host: rotary angles follow from them
  at::Tensor coordinates;                              // [3, t], likewise; undefined if tokens have none
  int64_t max_position = 0;                            // some rotary embeddings stretch with it
  std::map<std::string, std::vector<int64_t>> extras;  // sizes of the extra tensors
  std::vector<double> constants;                       // factors of losses, and counts that an objective may read

  BatchKey() = default;
  // `stretches` says whether rotary angles depend on the largest position; otherwise it is left out, since padded rows
  // of one length often differ in it.
  static BatchKey of(const data::MicroBatch& batch, std::vector<double> constants, bool stretches);
  BatchKey(const data::MicroBatch& batch, std::vector<double> constants);
  bool operator==(const BatchKey& other) const;
};

// A graph refers to memory by address. So the tensors that it reads stay in place: a micro-batch is first copied into
// them, then the graph is replayed. One thread per rank.
class RecordedBatch {
 public:
  // `layout` is that of an equal micro-batch that has run without a graph: tensors that a layout creates on first use
  // must exist before recording, because a graph must not own them.
  RecordedBatch(const data::MicroBatch& batch, const ops::SequenceLayout& layout, at::Device device);

  // Copies a micro-batch with the same key to where graphs read it.
  void load(const data::MicroBatch& batch);
  // Call it before each recording: makes the models use the angles of this layout, which another one may have replaced,
  // and keeps them for the graph.
  void hold_angles(const std::vector<model::GptModel*>& chunks);

  const data::MicroBatch& batch() const { return batch_; }  // on the device

 private:
  const at::Device device_;
  data::MicroBatch batch_;
  std::vector<ops::RopeAngles> angles_;  // kept for the graphs of all recordings
};

}  // namespace megalith::train
