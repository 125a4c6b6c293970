// Scoring: losses and logits of given sequences, in every layout. Replicas share the sequences; the ranks of a replica
// work on the same ones, its pipeline stages on several micro-batches at a time.
//
// Legend: b sequences, s tokens of a row, v vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

#include "megalith/inference/media_batch.h"
#include "megalith/model/virtual_models.h"

namespace megalith::inference {

// The sequences to score.
struct ScoreBatch {
  at::Tensor input_ids;       // int64 [b, s]
  at::Tensor attention_mask;  // int64 [b, s], 0 = padding; undefined if there is no padding
  at::Tensor labels;          // int64 [b, s], aligned with tokens, -100 = ignored; undefined = the unmasked tokens
                              // except placeholders of media
  MediaInput media = {};      // images and videos of the rows, which their placeholders stand for
};

// The size of a pass, and the contents of the file.
struct ScoreOptions {
  int64_t rows = 8;     // sequences at a time
  bool logits = false;  // also write the logits
};

// The mean loss over all rows, equal on all ranks.
struct ScoreTotal {
  double loss = 0;  // mean over the labeled tokens of all sequences; 0 if there are none
  int64_t num_label_tokens = 0;
};

// Writes token_losses [b, s], loss [] and, on request, logits [b, s, v], all fp32. Entry t of a row's losses belongs to
// the label at t+1; it is 0 if that is ignored, and at the end. Every rank scores and writes its share of the rows. The
// file appears only once it is complete. All ranks call it. Throws like place_media, and ConfigError for a model that
// scores sequences.
ScoreTotal score_to_file(const model::VirtualModels& models, const ScoreBatch& batch,
                         const std::filesystem::path& output, const ScoreOptions& options);

// For a model that scores sequences (model/families/scores.h): writes logits [b, n], the n scores of each row, fp32,
// and returns them on every rank. They are those of the last token that the mask keeps and that is not the padding of
// config.json (pad_token_id), as in transformers; with a value head (model/families/value_head.h), those of the last
// token that the mask keeps. Collective and complete like score_to_file. Throws ConfigError for
// other models.
at::Tensor score_sequences_to_file(const model::VirtualModels& models, const ScoreBatch& batch,
                                   const std::filesystem::path& output, int64_t rows);

// The same numbers for some rows, for callers that do not want a file. Padding on the right is computed like any token
// (it does not affect those before it); other padding is skipped, and its entries are 0.
struct ScoredRows {
  at::Tensor token_losses;  // fp32 [b, s]
  at::Tensor logits;        // fp32 [b, s, v]; undefined unless requested
  at::Tensor scores{};      // fp32 [b, n], of a model that scores sequences; the other two are undefined then
};
// Returns the scores on the ranks of the last pipeline stage, equal on all of a replica; elsewhere the tensors are
// undefined. Every rank calls it, with rows of its replica.
ScoredRows score_rows(const model::VirtualModels& models, const ScoreBatch& rows, bool logits);

}  // namespace megalith::inference
