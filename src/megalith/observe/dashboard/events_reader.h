// EventsReader: events.jsonl of a run that may still go on.
#pragma once

#include <deque>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "megalith/observe/dashboard/line_tail.h"

namespace megalith::observe {

// Keeps the newest kMostEvents. One thread.
class EventsReader {
 public:
  // The run's folder, canonical.
  explicit EventsReader(std::filesystem::path folder) : tail_(std::move(folder), "events.jsonl") {}

  // Takes what is new; whether anything is. Throws DataError (see InsideFile).
  bool update();

  // Texts of JSON objects, oldest first, with "time", "step" and "event" as in observe/events_file.h.
  const std::deque<std::string>& events() const { return events_; }
  int64_t left_out() const { return left_out_; }    // older ones
  int64_t malformed() const { return malformed_; }  // lines that are no events
  // Of the newest start: text of a JSON object; its "layout"; and whether the run has ended since.
  const std::string& start() const { return start_; }
  bool ended() const { return ended_; }

  static constexpr size_t kMostEvents = 2000;

 private:
  void clear();
  void add(std::string_view line);

  LineTail tail_;
  std::deque<std::string> events_;
  std::string start_;
  bool ended_ = false;
  int64_t left_out_ = 0, malformed_ = 0;
};

// The places of all ranks of a start event's layout, for drawing:
//   {"world_size":4,"tp":2,"pp":2,"cp":1,"dp":1,"ep":1,"vpp":1,"order":"…","places":[[tp,cp,dp,pp,ep],…]}
// by rank. Nothing when the event has none, or an impossible one. Of more than kMostPlaces ranks `places` is left out.
std::optional<std::string> layout_json(const std::string& start_event);
inline constexpr int kMostPlaces = 16384;

}  // namespace megalith::observe
