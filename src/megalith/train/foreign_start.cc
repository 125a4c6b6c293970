#include "megalith/train/foreign_start.h"

#include <fmt/format.h>

#include "megalith/checkpoint/copy.h"
#include "megalith/io/file_io.h"
#include "megalith/train/report/trainer_state.h"
#include "megalith/train/run_checkpoint.h"
#include "megalith/train/run_progress.h"

namespace megalith::train {

void make_foreign_checkpoint(const std::filesystem::path& folder, int64_t step) {
  RunProgress progress{.optimizer = fmt::format(R"({{"optimizer": "adam", "step": {}}})", step),
                       .scheduler = "{}",
                       .scaler = "{}",
                       .data = {},
                       .sampler = std::nullopt,
                       .log = {},
                       .of_other_program = true};
  io::write_text_file(folder / kProgressFile, progress.to_json());
  TrainerState state;
  state.global_step = state.max_steps = step;
  state.save(folder / kTrainerStateFile);
  checkpoint::add_manifest(folder, step, {"model", "optimizer"});
}

}  // namespace megalith::train
