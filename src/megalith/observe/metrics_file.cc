// A run that resumes from step n repeats the steps after n that an earlier run had logged before it ended. To keep one
// line per step, the file is cut when it is opened: the lines up to n are kept, in a new file that replaces the old one
// by a rename, so a crash in between leaves one of the two. After that the file only grows, at a position kept here
// rather than asked of the file system.
#include "megalith/observe/metrics_file.h"

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"
#include "megalith/observe/units.h"

namespace megalith::observe {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 32;  // a bound for reading an old file

// Returns the "step" of a line. `place` ("out/metrics.jsonl, line 3") is for the message.
int64_t step_of(std::string_view line, const std::string& place) {
  const io::Json object = io::parse_json(line, place);
  const bool has_step = object.is_object() && object.contains("step") && object["step"].is_number();
  check<DataError>(has_step,
                   "{}: this line has no \"step\", so the file is not one that Megalith wrote. Move it away, or choose "
                   "another output_dir",
                   place);
  return object["step"].get<int64_t>();
}

// Returns the lines of the old content that a run continuing after `resumed_step` keeps. A last line without its end is
// dropped.
std::string kept_lines(const std::filesystem::path& path, int64_t resumed_step) {
  const std::string text = io::read_text_file(path, kMostBytes);
  std::string kept;
  size_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (step_of(line, fmt::format("{}, line {}", path.string(), number)) <= resumed_step) kept.append(line) += '\n';
    begin = end + 1;
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t resumed_step) {
  if (std::filesystem::exists(path)) {
    // Rewritten only if something is dropped: the usual resume, from the newest checkpoint, changes nothing.
    const std::string kept = resumed_step > 0 ? kept_lines(path, resumed_step) : "";
    if (kept.size() != std::filesystem::file_size(path)) io::replace_text_file(path, kept);
    bytes_ = kept.size();
  }
  file_ = io::FileHandle::open_or_create(path);
}

void MetricsFile::append(int64_t step, std::optional<double> epoch, const train::MetricList& metrics) {
  // A list keeps the order of insertion, so step and epoch lead the line.
  train::MetricList line{{"step", static_cast<double>(step)}};
  if (epoch) line.set("epoch", *epoch);
  for (const auto& [name, value] : metrics)
    if (name != "step" && name != "epoch") line.set(name, value);
  const std::string text = line.to_json().dump() + "\n";
  file_.write_at(bytes_, text.data(), text.size());
  bytes_ += text.size();
}

void MetricsFileCallback::on_train_begin(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  file_.emplace(folder_ / "metrics.jsonl", event.state.global_step);
}

void MetricsFileCallback::on_log(train::TrainerEvent& event) {
  if (!file_) return;
  train::MetricList line = event.metrics;
  line.set("time", seconds_since_1970());
  line.set("samples", static_cast<double>(event.consumed_samples));
  line.set("tokens", static_cast<double>(event.state.num_input_tokens_seen));
  file_->append(event.state.global_step, event.state.epoch, line);
}

}  // namespace megalith::observe
