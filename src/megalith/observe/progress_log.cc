// Lines and numbers follow Megatron-LM's megatron/training: writing utils/log_utils.py, reading training.py.
#include "megalith/observe/progress_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <utility>
#include <vector>

#include "megalith/base/env.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/io/file_io.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::observe {

namespace {

using Time = ProgressLog::Time;

constexpr const char* kTimeFormat = "%Y-%m-%d %H:%M:%S";
constexpr uint64_t kMaxLogBytes = 1'000'000'000;
constexpr const char* kStarting = "Starting job";

std::string local_time(Time time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, kTimeFormat, &parts)};
}

std::optional<Time> parse_time(const std::string& text) {
  std::tm parts{};
  const char* end = ::strptime(text.c_str(), kTimeFormat, &parts);
  if (!end || *end != '\0') return std::nullopt;
  parts.tm_isdst = -1;  // not known
  return std::chrono::system_clock::from_time_t(std::mktime(&parts));
}

// "# GPUs: 8" -> 8
std::optional<double> number_in(const std::string& field) {
  const size_t colon = field.find(": ");
  if (colon == std::string::npos) return std::nullopt;
  double value = 0;
  const char *first = field.data() + colon + 2, *last = field.data() + field.size();
  return std::from_chars(first, last, value).ec == std::errc() ? std::optional(value) : std::nullopt;
}

// The number of a "Floating-point operations" field.
constexpr size_t kFlopsField = 7;

}  // namespace

void ProgressLog::append(const std::string& text, Time now) const {
  const std::string line = fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n", local_time(now), job_, world_size_, text);
  const io::FileHandle file = io::FileHandle::open_or_create(file_);
  file.write_at(file.size(), line.data(), line.size());
}

std::optional<ProgressLog::Start> ProgressLog::first_job() const {
  std::optional<Start> start;
  double saved = 0;  // operations of the last complete checkpoint
  std::optional<double> unfinished;
  for (const std::string& line : split(io::read_text_file(file_, kMaxLogBytes), '\n')) {
    const std::vector<std::string> fields = split(trim(line), '\t');
    if (fields.size() < 4) continue;
    const std::string& kind = fields[3];
    const auto flops = fields.size() > kFlopsField ? number_in(fields[kFlopsField]) : std::nullopt;
    if (kind == "Saved checkpoint" && flops) saved = *flops;
    if (kind == "Saving async checkpoint") unfinished = flops;
    if (kind == "Saved async checkpoint" && unfinished) saved = *std::exchange(unfinished, std::nullopt);
    if (number_in(fields[2]) != world_size_)
      start.reset();
    else if (const auto time = parse_time(fields[0]); kind == kStarting && !start && time)
      start = Start{*time, saved};
  }
  return start;
}

void ProgressLogCallback::on_train_begin(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  log_.emplace(folder_ / "progress.txt", env_string("SLURM_JOB_ID").value_or(""), world_size_);
  begin_ = std::chrono::system_clock::now();
  begin_flops_ = event.state.total_flos;
  for (const auto& checkpoint : checkpoint::list_checkpoints(folder_)) saved_.insert(checkpoint.step);
  append(kStarting);
}

void ProgressLogCallback::on_step_end(train::TrainerEvent& event) {
  samples_ = event.metrics.find("consumed_samples").value_or(samples_);
}

void ProgressLogCallback::on_save_begin(train::TrainerEvent& event) {
  if (log_ && is_of_run(event.folder) && event.settings.save.in_background)
    append(
        fmt::format("Saving async checkpoint\tIteration: {}\t{}", event.state.global_step, throughputs(event.state)));
}

// The step of a background save is in the name of its folder; the run has gone on.
void ProgressLogCallback::on_save(train::TrainerEvent& event) {
  if (!log_ || !is_of_run(event.folder)) return;  // Megatron leaves non-persistent checkpoints out
  if (event.settings.save.in_background)
    append(fmt::format("Saved async checkpoint\tIteration: {}",
                       trim(event.folder.filename().string().substr(checkpoint::folder_name(0).size() - 1))));
  else
    append(fmt::format("Saved checkpoint\tIteration: {}\t{}", event.state.global_step, throughputs(event.state)));
  note_deleted();
}

std::string ProgressLogCallback::throughputs(const train::TrainerState& state) const {
  using Seconds = std::chrono::duration<double>;
  const Time now = std::chrono::system_clock::now();
  const auto rate = [&](double flops, Time since) {
    const double seconds = std::max(Seconds(now - since).count(), 1e-3);
    return (state.total_flos - flops) / (seconds * 1e12 * world_size_);
  };
  const ProgressLog::Start first = log_->first_job().value_or(ProgressLog::Start{begin_, begin_flops_});
  return fmt::format(
      "Job throughput: {:.1f} TFLOP/s/GPU\tCumulative throughput: {:.1f} TFLOP/s/GPU\tFloating-point operations: {:.2e}"
      "\tTokens (in billions): {:.2f}",
      rate(begin_flops_, begin_), rate(first.flops, first.time), state.total_flos,
      samples_ * static_cast<double>(sequence_length_) / 1e9);
}

bool ProgressLogCallback::is_of_run(const std::filesystem::path& checkpoint) const {
  return checkpoint == folder_ / checkpoint.filename();
}

void ProgressLogCallback::append(const std::string& text) const {
  log_->append(text, std::chrono::system_clock::now());
}

// Older checkpoints were removed before on_save.
void ProgressLogCallback::note_deleted() {
  std::set<int64_t> now;
  for (const auto& checkpoint : checkpoint::list_checkpoints(folder_)) now.insert(checkpoint.step);
  for (const int64_t step : saved_)
    if (!now.contains(step)) append(fmt::format("Deleted checkpoint\tIteration: {}", step));
  saved_ = std::move(now);
}

}  // namespace megalith::observe
