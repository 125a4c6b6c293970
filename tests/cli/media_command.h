// MediaCommand: the fixture of tests that run `megalith train` on images and on sounds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "megalith/hf/weight_files.h"
#include "tests/cli/program_support.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

// A folder for models, records and results.
class MediaCommand : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Trains towers and what joins them to the language model.
  inline static const Words kAll{"--freeze_vision_tower=false", "--freeze_multi_modal_projector=false"};

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Three steps over all records in one batch; `more` wins.
  ProcessResult train_steps(const std::string& model, const std::string& chat, const std::string& output,
                            const Words& more) const {
    return megalith(with({"train", "--finetuning_type=full", "--use_cpu", "--template=" + chat,
                          "--model_name_or_path=" + path(model), "--dataset_dir=" + folder_.path().string(),
                          "--output_dir=" + path(output), "--image_max_pixels=1024", "--image_min_pixels=64",
                          "--cutoff_len=512", "--per_device_train_batch_size=4", "--max_steps=3",
                          "--learning_rate=1e-3", "--lr_scheduler_type=constant", "--disable_shuffling",
                          "--calculate_per_token_loss", "--logging_steps=1", "--save_strategy=no"},
                         more),
                    {{"XDG_CACHE_HOME", path("cache")}});
  }

  // Returns the tensors that differ between two folders: "text", a tower and its part ("visual.blocks"), or the name of
  // one that belongs to neither.
  std::set<std::string> changed(const std::string& before, const std::string& after) const {
    const hf::WeightFiles a(folder_ / before), b(folder_ / after);
    EXPECT_EQ(a.names(), b.names());
    std::set<std::string> parts;
    for (const std::string& name : a.names()) {
      if (a.tensor(name).equal(b.tensor(name))) continue;
      const size_t tower = std::min(name.find("visual."), name.find("audio_tower."));
      if (tower == std::string::npos) {
        const bool other = name.starts_with("talker.") || name.starts_with("code2wav.");
        parts.insert(other ? name : "text");
        continue;
      }
      const std::string rest = name.substr(tower);
      parts.insert(rest.substr(0, rest.find('.', rest.find('.') + 1)));
    }
    return parts;
  }

  TempFolder folder_;
};

}  // namespace megalith::testing
