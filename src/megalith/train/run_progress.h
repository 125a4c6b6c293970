// RunProgress: how far a run has come, as progress.json of a checkpoint keeps it: all that is neither a tensor nor in
// trainer_state.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/data/batch_loader.h"
#include "megalith/train/training_log.h"

namespace megalith::train {

struct RunProgress {
  std::string optimizer, scheduler, scaler;     // JSON objects: what those parts give and take
  data::LoaderStart data;                       // behind the last step
  std::optional<data::SamplerOptions> sampler;  // in whose order that is; nothing: a stream
  TrainingLog::Totals log;                      // of the line that is not complete, and of the run
  int64_t skipped_samples = 0;
  bool epoch_end_pending = false;  // the last step was the epoch's last, and its end has not been told yet

  std::string to_json() const;
  // Throws DataError naming the file and the field.
  static RunProgress from_json(std::string_view text, const std::string& file_name);
};

}  // namespace megalith::train
