// Samples with the likeliest tokens of a teacher beside their labels.
//
// The unit is what a forward pass treats as one text: a row, or each piece of a row whose pieces do not attend to one
// another. So files that were written without packing, or with another packing of that kind, serve as well; with plain
// packing a token sees the texts before it, and only the same rows will do.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megalith/data/dataset.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/train/distillation/teacher_files.h"

namespace megalith::train {

// Fields of the rows, one value per label: int64 [k], fp32 [k], fp32. Reach the loss as extra tensors of these names.
inline constexpr const char *kTeacherIds = "teacher_ids", *kTeacherLogProbs = "teacher_log_probs",
                            *kTeacherLogTail = "teacher_log_tail";

// A text of a row.
struct TaughtUnit {
  SampleKey key;
  std::vector<int64_t> labels;  // places in the row of the labels that are predicted, in order
};

// Returns the texts of a row that have labels. Their labels follow one another as in a micro-batch.
std::vector<TaughtUnit> units_of(const data::Sequence& row);

// Returns the same samples with the fields above, from the files. `temperature` is that of the tail, which files of a
// whole vocabulary lack: then, and without `tail`, the rows have no field for it. Every sample must be in the files.
std::shared_ptr<const data::Dataset> with_teacher_files(std::shared_ptr<const data::Dataset> dataset,
                                                        std::shared_ptr<const TeacherFiles> files, double temperature,
                                                        bool tail);

// Throws DataError on all ranks unless the files have every text of `dataset`: says how many are missing, and which of
// the options that shape samples (`data`, as in TeacherIndex) differ. `what` names the dataset. Each rank looks at a
// share. Collective over all ranks.
void check_taught(const data::Dataset& dataset, const TeacherFiles& files,
                  const std::map<std::string, std::string>& data, const std::string& what,
                  const parallel::ParallelContext& context);

}  // namespace megalith::train
