// EventFile: writes TensorBoard's event files without its library: TFRecords of Event messages
// (tensorboard/compat/proto).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/io/file_io.h"

namespace megalith::observe {

// How a file is named, and what it supersedes. TensorBoard merges all files of a folder into one set of curves, in the
// order of their names.
struct EventFileOptions {
  double wall_time = 0;   // seconds since 1970, for the name of the file
  std::string host = "";  // for the name of the file; empty for this machine's name
  // >= 0: TensorBoard forgets what earlier files of the folder say about this step and later ones.
  int64_t purge_step = -1;
};

// One file `events.out.tfevents.<seconds>.<host>.<process>.<n>` in a folder; n is the first free number. Every call
// reaches the file before it returns. Throws DataError. One thread. A crash loses at most the record in progress, which
// readers skip by its checksum.
class EventFile {
 public:
  // Creates the folder and a new file in it, which begins with the format's version.
  explicit EventFile(const std::filesystem::path& folder, const EventFileOptions& options = {});

  const std::filesystem::path& path() const { return file_.path(); }
  // Adds a point to a curve. `wall_time` is in seconds since 1970; TensorBoard stores values in single precision.
  // Points of a tag need not come in the order of their steps.
  void add_scalar(std::string_view tag, double value, int64_t step, double wall_time);
  // A histogram: bucket i counts the values from limits[i - 1] (or from -infinity) up to limits[i].
  struct Buckets {
    std::vector<double> limits;  // ascending
    std::vector<double> counts;  // as many
    double least = 0, most = 0;  // bounds of the values
    double sum = 0, sum_squares = 0;
  };
  // Adds a histogram, shown under "Histograms" and "Distributions".
  void add_histogram(std::string_view tag, const Buckets& buckets, int64_t step, double wall_time);
  // Adds Markdown, shown under "Text".
  void add_text(std::string_view tag, std::string_view markdown, int64_t step, double wall_time);

 private:
  // Appends a message as one TFRecord, with both checksums.
  void add_record(const std::string& event);

  io::FileHandle file_;
  uint64_t bytes_ = 0;  // written so far
};

}  // namespace megalith::observe
