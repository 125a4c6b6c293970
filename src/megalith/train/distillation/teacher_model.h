// TeacherModel: the model whose distributions another one is trained towards.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "megalith/model/virtual_models.h"
#include "megalith/train/step/frozen_model.h"

namespace megalith::train {

// One thread per rank; every rank holds its part of the teacher, laid out like the student. The models' context
// outlives it. Logits of a whole step would not fit, so run() keeps the final hidden states, and logits() projects some
// tokens at a time.
//
// Legend: t tokens of a micro-batch on this rank (its context-parallel slice), h the teacher's hidden size.
class TeacherModel {
 public:
  // Throws ConfigError for a model whose head does not predict tokens.
  TeacherModel(model::VirtualModels models, const StepSettings& settings);
  TeacherModel(const TeacherModel&) = delete;
  TeacherModel& operator=(const TeacherModel&) = delete;
  ~TeacherModel();

  // Runs (whole) micro-batches, and keeps what the functions below need until the next call. Collective over the
  // pipeline-, tensor- and context-parallel ranks of a replica.
  void run(std::span<const data::MicroBatch> batches);

  // For the last stage. Returns the output of the final norm for a micro-batch of the latest run, whole on every
  // tensor-parallel rank: [t, h]. Collective over tp.
  at::Tensor hidden(int microbatch) const;
  // Returns this rank's columns of the logits of some rows of it: [c, h] -> [c, v/tp].
  at::Tensor logits(const at::Tensor& rows) const;
  // Returns the token ids of these columns.
  ops::VocabRange vocab_range() const;
  // Returns the ranks that share the columns.
  comm::Group tp() const;

  // For every stage. Returns the number of ids of the teacher's vocabulary.
  int64_t vocab_size() const;
  // Returns the smallest number of micro-batches >= count that run() accepts.
  int group_size(int count) const;
  // True on exactly one rank per data-parallel replica, on the last stage.
  bool counts_for_replica() const;

 private:
  class Keeper;

  TeacherModel(model::VirtualModels models, const StepSettings& settings, std::unique_ptr<Keeper> keeper);
  const model::GptModel& last_chunk() const;

  Keeper& keeper_;  // owned by frozen_
  FrozenModel frozen_;
};

}  // namespace megalith::train
