// StagePasses: forward passes of a model that is split in any way, for results that are not trained on: scores, texts.
//
//   const StagePasses passes(models);
//   passes.run({12, 7}, [&](const model::GptModel& chunk, const auto& call) { return chunk.forward(…); });
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "megalith/model/virtual_models.h"
#include "megalith/pipeline/forward_backward.h"

namespace megalith::inference {

// Used by one thread per rank; `models` outlives it.
class StagePasses {
 public:
  explicit StagePasses(const model::VirtualModels& models);

  // Runs one micro-batch per entry of `tokens`, the number of its tokens on this rank (with sequence parallelism,
  // before they are split over tp). The micro-batches follow each other through the pipeline, so that stages work at
  // the same time. Collective over a replica, whose ranks pass the same numbers; group() says how many are possible.
  //
  // `work` runs a micro-batch through a chunk. It returns the hidden states for the next chunk, from call.input of the
  // one before; its result on the chunk with the head is ignored.
  using Work = std::function<at::Tensor(const model::GptModel& chunk, const pipeline::StageCall& call)>;
  void run(const std::vector<int64_t>& tokens, const Work& work) const;

  // Returns the smallest number of micro-batches >= count that the pipeline's schedule accepts.
  int group(int count) const;

 private:
  layout::PipelineShape shape(int microbatches) const;

  const model::VirtualModels& models_;
  pipeline::ForwardBackward engine_;
};

// Returns whether the model's head computes logits. Only the last stage has the head; every stage learns the answer.
// Collective over the pipeline group.
bool predicts_tokens(const model::VirtualModels& models);

// Throws DataError for an id that is not in the vocabulary: on every rank, before one of them waits for another.
void check_token_ids(const at::Tensor& ids, const model::ModelConfig& config);

}  // namespace megalith::inference
