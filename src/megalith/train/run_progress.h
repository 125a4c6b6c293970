// RunProgress: the progress of a run as stored in progress.json of a checkpoint: everything that is neither a tensor
// nor part of trainer_state.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/data/batch_loader.h"
#include "megalith/train/training_log.h"

namespace megalith::train {

// Reading is strict: a field that is missing is an error, since a default would silently change the run.
struct RunProgress {
  std::string optimizer, scheduler, scaler;     // JSON objects, written and read by these parts
  data::LoaderStart data;                       // position after the last step
  std::optional<data::SamplerOptions> sampler;  // the order to which `data` refers; std::nullopt for a stream
  TrainingLog::Totals log;                      // sums of the incomplete log line, and of the whole run
  int64_t skipped_samples = 0;
  bool epoch_end_pending = false;  // the last step ended an epoch, but on_epoch_end has not been called yet
  // The state is that of another program (foreign_start.h): scheduler and scaler are empty, and there are no
  // random states.
  bool of_other_program = false;

  // Returns the text of progress.json.
  std::string to_json() const;
  // Throws DataError naming the file and the field.
  static RunProgress from_json(std::string_view text, const std::string& file_name);
};

}  // namespace megalith::train
