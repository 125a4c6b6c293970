#include "megalith/observe/run_files.h"

#include "megalith/config/documents.h"
#include "megalith/io/file_io.h"

namespace megalith::observe {

void RunFilesCallback::on_train_begin(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  io::replace_text_file(folder_ / "args.yaml", config::to_yaml(event.args));
}

void RunFilesCallback::on_train_end(train::TrainerEvent& event) {
  if (event.state.is_world_process_zero) event.state.save(folder_ / "trainer_state.json");
}

}  // namespace megalith::observe
