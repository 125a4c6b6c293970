// A run that resumes from step n repeats the steps after n that an earlier run had recorded before it ended. To keep
// one record per step, the file is cut when it is opened: the lines up to n are kept, in a new file that replaces the
// old one by a rename, so a crash in between leaves one of the two. After that the file only grows, at a position kept
// here rather than asked of the file system.
#include "megalith/observe/records/step_lines.h"

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"

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

StepLines::StepLines(const std::filesystem::path& path, int64_t resumed_step) {
  if (std::filesystem::exists(path)) {
    // Rewritten only if something is dropped: the usual resume, from the newest checkpoint, changes nothing.
    const std::string kept = resumed_step > 0 ? kept_lines(path, resumed_step) : "";
    if (kept.size() != std::filesystem::file_size(path)) io::replace_text_file(path, kept);
    bytes_ = kept.size();
  }
  file_ = io::FileHandle::open_or_create(path);
}

void StepLines::append(std::string line) {
  line += '\n';
  file_.write_at(bytes_, line.data(), line.size());
  bytes_ += line.size();
}

}  // namespace megalith::observe
