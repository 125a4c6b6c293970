// Forward-only runs of the pipeline's engine. A model on a single stage takes the same way, without messages.
#include "megalith/inference/stage_passes.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"

namespace megalith::inference {

StagePasses::StagePasses(const model::VirtualModels& models)
    : models_(models),
      // With virtual stages the two neighbors of a rank may be the same one, which needs overlapped messages.
      engine_(models.context(), {.hidden = models.config().hidden_size,
                                 .dtype = models[0].options().stream_dtype(),
                                 .overlap = models.size() > 1}) {}

layout::PipelineShape StagePasses::shape(int microbatches) const {
  const int pp = models_.context().grid().shape().pp, chunks = static_cast<int>(models_.size());
  return {.kind = layout::PipelineShape::kind_for(pp, chunks > 1 ? std::optional(chunks) : std::nullopt),
          .pp = pp,
          .chunks = chunks,
          .microbatches = microbatches,
          .group_size = std::nullopt,
          .forward_only = true};
}

// Ends: every schedule accepts some multiple of the number of stages.
int StagePasses::group(int count) const {
  while (!layout::problems(shape(count)).empty()) ++count;
  return count;
}

void StagePasses::run(const std::vector<int64_t>& tokens, const Work& work) const {
  const nn::TensorParallel& tp = models_[0].tensor_parallel();
  pipeline::StepPlan plan{shape(static_cast<int>(tokens.size())), tokens};
  for (int64_t& rows : plan.rows) rows /= tp.splits_tokens() ? tp.size() : 1;
  pipeline::StageWork stages;
  stages.forward = [&](const pipeline::StageCall& call) {
    return work(models_[static_cast<size_t>(call.chunk)], call);
  };
  engine_.run(plan, stages);
}

bool predicts_tokens(const model::VirtualModels& models) {
  const parallel::ParallelContext& context = models.context();
  at::Tensor answer = at::ones({1}, at::TensorOptions(at::kLong).device(context.device()));
  for (const auto& chunk : models)
    if (chunk->head() && !chunk->head()->predicts_tokens()) answer.zero_();
  context.pp().all_reduce(answer, comm::ReduceOp::kMin, "whether the head predicts tokens");
  return answer.item<int64_t>() != 0;
}

void check_token_ids(const at::Tensor& ids, const model::ModelConfig& config) {
  if (ids.numel() == 0) return;
  const auto [low, high] = at::aminmax(ids);
  const int64_t bad = low.item<int64_t>() < 0 ? low.item<int64_t>() : high.item<int64_t>();
  check<DataError>(
      bad >= 0 && bad < config.vocab_size,
      "token id {} is outside of the model's vocabulary of {}: the tokens were made with another tokenizer,"
      " or this one has tokens for which the model has no rows. Make them with the model's tokenizer, or"
      " train with resize_vocab first",
      bad, config.vocab_size);
}

}  // namespace megalith::inference
