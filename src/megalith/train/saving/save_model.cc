// An export goes into a staging folder inside `folder`, and its files are then moved one by one, the configuration
// last. A crash in between leaves a folder without a configuration, which is visibly incomplete.
#include "megalith/train/saving/save_model.h"

#include <vector>

#include "megalith/base/error.h"
#include "megalith/io/file_io.h"
#include "megalith/io/staged_folder.h"
#include "megalith/model/adapter.h"
#include "megalith/model/pretrained.h"

namespace megalith::train {

namespace fs = std::filesystem;

namespace {

// Moves all files from one folder to another. `last`, whose presence says that the folder is complete, is removed first
// and moved last.
void move_files(const fs::path& from, const fs::path& to, const fs::path& last) {
  std::error_code error;
  fs::remove(to / last, error);
  std::vector<fs::path> names;
  for (const auto& entry : fs::directory_iterator(from))
    if (entry.path().filename() != last) names.push_back(entry.path().filename());
  names.push_back(last);
  for (const fs::path& name : names) {
    fs::rename(from / name, to / name, error);
    check<DataError>(!error, "cannot move {} to {}: {}", (from / name).string(), to.string(), error.message());
  }
  io::sync_folder(to);
}

}  // namespace

void save_model(const model::VirtualModels& models, const SaveSettings& settings, const fs::path& folder,
                const model::Assets& assets) {
  const bool first = models.context().rank() == 0;
  const bool adapter = model::has_adapter(models) && !settings.merged_model;
  // Inside `folder`, since files can be renamed only within one file system.
  io::StagedFolder staged(folder / "model", "save", {.owner = first, .overwrite = true});
  const comm::Group everyone = models.context().world().world();
  everyone.barrier("save: folder made");
  if (adapter) {
    model::save_adapter(models, staged.path(),
                        {.assets = assets, .overwrite = true, .without_start = settings.converted_adapter});
  } else {
    const model::WithMergedAdapter merged(models);
    model::save_pretrained(models, staged.path(), {.assets = assets, .overwrite = true});
  }
  if (first) {
    io::write_text_file(staged.path() / "args.yaml", settings.arguments);
    move_files(staged.path(), folder, adapter ? peft::kConfigName : "config.json");
  }
  everyone.barrier("save: done");
  if (model::has_adapter(models) && !adapter)
    model::save_adapter(models, folder / "adapter", {.overwrite = true, .without_start = settings.converted_adapter});
}

}  // namespace megalith::train
