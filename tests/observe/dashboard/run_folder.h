// A run's folder as a test wants it.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/support/temp_folder.h"

namespace megalith::observe {

// A folder for the files of a made-up run, removed at the end.
class RunFolder {
 public:
  RunFolder() : path_(std::filesystem::canonical(folder_.path())) {}
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void append(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::app) << text;
  }

 private:
  testing::TempFolder folder_;
  std::filesystem::path path_;  // canonical
};

}  // namespace megalith::observe
