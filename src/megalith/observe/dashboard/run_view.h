// RunView: everything that the dashboard shows about one run's folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/observe/dashboard/alerts.h"
#include "megalith/observe/dashboard/events_reader.h"
#include "megalith/observe/dashboard/metrics_reader.h"
#include "megalith/observe/dashboard/notes_file.h"
#include "megalith/observe/dashboard/step_records.h"
#include "megalith/observe/dashboard/trace_view.h"

namespace megalith::observe {

// Only reads, but for the notes. What cannot be read is shown as a problem and never throws. One thread.
class RunView {
 public:
  // The folder must exist. `name` is the name of the run on the page. Reads nothing yet; update() does.
  RunView(const std::filesystem::path& folder, std::string name);

  const std::string& name() const { return name_; }
  const std::filesystem::path& folder() const { return folder_; }

  // Reads what is new in the folder. Costs a few system calls when nothing has changed.
  void update();
  // Grows whenever json() or the trace have changed. The page keeps the version that it has drawn, and asks for json()
  // only when this one differs.
  int64_t version() const { return version_; }

  // Returns one object:
  //   name, folder, version, lines, malformed, left_out, problems [texts]
  //   changed      time of the last change of metrics.jsonl in seconds since 1970; 0 if there is no such file
  //   series       {name: DownsampledSeries}
  //   events, events_left_out, malformed_events, start (the newest start event, or null), ended
  //   layout       layout_json, or null;  live: live.json, or null;  trace: TraceView::summary_json, or null
  //   samples, histograms  steps with texts, and with histograms;  malformed_records: lines of theirs that are neither
  //   checkpoints  [{name, step, bytes, time, latest}]
  //   args         text of args.yaml;  notes, tags: of notes.json
  //   alerts       [{kind, step, text}], see alerts.h
  std::string json() const;
  // Returns {"from":…,"to":…,"version":…,"series":{name: DownsampledSeries}} for steps `from` to `to`, which may be
  // finer than json(); `version` as of json(). std::nullopt when the file can no longer be read.
  std::optional<std::string> part_json(int64_t from, int64_t to) const;
  // Returns one step of the timeline; std::nullopt when there is no such step. Steps count from 0 within the timeline,
  // not from the start of the run.
  std::optional<std::string> trace_step_json(size_t step) const;
  size_t trace_steps() const { return trace_ ? trace_->steps().size() : 0; }

  // Parts of json(), for other forms of it.
  const MetricsReader& metrics() const { return metrics_; }
  const EventsReader& events() const { return events_; }
  const SamplesReader& samples() const { return samples_; }
  const HistogramsReader& histograms() const { return histograms_; }
  const std::string& live_json() const { return live_json_; }  // "null" without live.json
  const std::vector<Alert>& alerts() const { return alerts_; }

  // Replaces notes.json in the run's folder. Throws DataError when that is not possible.
  void write_notes(const RunNotes& notes);

 private:
  // A file that is read whole whenever it has changed.
  struct WholeFile {
    // `text` is empty without a file, and when the file exceeds most_bytes.
    std::string name;
    uint64_t most_bytes;
    std::optional<FileVersion> version{};
    std::string text{};
  };
  // Runs `read` and turns an exception into a problem; refresh() reads a whole file if it has changed.
  template <typename Read>
  void guarded(const Read& read);
  bool refresh(WholeFile& file);
  void refresh_live();
  void refresh_trace();
  void refresh_checkpoints();
  void refresh_notes();
  // Judges again when something has changed, and every few seconds, since a stall is that nothing does.
  void refresh_alerts(bool changed);

  std::filesystem::path folder_;  // canonical
  std::string name_;
  int64_t version_ = 0;
  MetricsReader metrics_;
  EventsReader events_;
  SamplesReader samples_;
  HistogramsReader histograms_;
  WholeFile args_, live_, trace_file_, notes_file_;
  std::string live_json_ = "null";
  std::optional<TraceView> trace_;
  std::string checkpoints_json_ = "[]";
  uint64_t largest_checkpoint_ = 0;  // bytes
  RunNotes notes_;
  std::vector<Alert> alerts_;
  double judged_ = 0;  // when alerts_ were found, in seconds since 1970
  std::vector<std::string> problems_;
};

}  // namespace megalith::observe
