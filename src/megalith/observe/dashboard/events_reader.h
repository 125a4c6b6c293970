// EventsReader: reads events.jsonl of a run that may still be running.
#pragma once

#include <deque>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "megalith/observe/dashboard/line_tail.h"

namespace megalith::observe {

// Keeps the newest kMostEvents events. One thread. A file that is cut or replaced is read again from its start. Lines
// that are not events are counted and skipped.
class EventsReader {
 public:
  // `folder` is the run's folder, canonical.
  explicit EventsReader(std::filesystem::path folder) : tail_(std::move(folder), "events.jsonl") {}

  // Reads what is new; returns whether there was anything. Throws DataError (see InsideFile).
  bool update();

  // Returns JSON objects as text, oldest first, with "time", "step" and "event" as in observe/events_file.h.
  const std::deque<std::string>& events() const { return events_; }
  int64_t left_out() const { return left_out_; }    // older events that were dropped
  int64_t malformed() const { return malformed_; }  // lines that are not events
  // The newest start event as JSON text, and whether the run has ended since.
  const std::string& start() const { return start_; }
  bool ended() const { return ended_; }

  // More than a page shows; a run of many evaluations must not grow without bound.
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

// Returns the places of all ranks in the layout of a start event, for drawing, by rank:
//   {"world_size":4,"tp":2,"pp":2,"cp":1,"dp":1,"ep":1,"vpp":1,"order":"…","places":[[tp,cp,dp,pp,ep],…]}
// std::nullopt when the event has no layout, or an impossible one. `places` is left out for more than kMostPlaces
// ranks.
// The text must be valid JSON, as events() returns it; sizes in it may be anything and are checked.
std::optional<std::string> layout_json(const std::string& start_event);
inline constexpr int kMostPlaces = 16384;

}  // namespace megalith::observe
