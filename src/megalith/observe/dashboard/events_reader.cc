// Events are kept as text: the page gets them unchanged, and only a few are looked into here (start and end decide
// whether the run is live and how its ranks are laid out). The file belongs to a job and may be damaged or made up, so
// each line is checked before it counts, and numbers of a layout are bounded before a grid is built from them.
#include "megalith/observe/dashboard/events_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"
#include "megalith/layout/rank_grid.h"

namespace megalith::observe {

using Json = nlohmann::ordered_json;

bool EventsReader::update() {
  const auto change = tail_.poll([this](std::string_view line) { add(line); }, [this] { clear(); });
  return change != LineTail::Change::kNone;
}

// Called when the file was replaced or cut: all its lines come again.
void EventsReader::clear() {
  events_.clear();
  start_.clear();
  ended_ = false;
  left_out_ = malformed_ = 0;
}

// A run that was started again has a start after an end, so the newest of the two decides.
void EventsReader::add(std::string_view line) try {
  const Json event = io::parse_json(line, "a line");
  const bool complete = event.is_object() && event.contains("event") && event["event"].is_string() &&
                        event.contains("time") && event["time"].is_number() && event.contains("step") &&
                        event["step"].is_number();
  if (!complete) return void(++malformed_);
  const std::string text = event.dump();  // written again, so that malformed UTF-8 or spacing never reaches the page
  if (event["event"] == "start") {
    start_ = text;
    ended_ = false;
  }
  if (event["event"] == "end") ended_ = true;
  events_.push_back(text);
  if (events_.size() <= kMostEvents) return;
  events_.pop_front();
  ++left_out_;
} catch (const DataError&) {
  ++malformed_;
}

namespace {

// Returns a size of the layout, or 0, which no layout has, for anything but a positive whole number.
int size_of(const Json& sizes, const char* key) {
  const auto entry = sizes.find(key);
  if (entry == sizes.end() || !entry->is_number_integer()) return 0;
  const auto size = entry->get<int64_t>();
  return size > 0 && size <= layout::kMaxGridSize ? static_cast<int>(size) : 0;
}

// The file may come from anywhere, so the layout is checked before ranks are placed in it.
std::optional<layout::GridShape> shape_of(const Json& sizes) {
  layout::GridShape shape;
  shape.world_size = size_of(sizes, "world_size");
  shape.tp = size_of(sizes, "tp");
  shape.pp = size_of(sizes, "pp");
  shape.cp = size_of(sizes, "cp");
  shape.ep = size_of(sizes, "ep");
  shape.etp = size_of(sizes, "etp");
  const auto order = sizes.find("order");
  if (order == sizes.end() || !order->is_string()) return std::nullopt;
  shape.order = order->get<std::string>();
  if (!layout::is_possible(shape)) return std::nullopt;
  return shape;
}

}  // namespace

std::optional<std::string> layout_json(const std::string& start_event) {
  if (start_event.empty()) return std::nullopt;
  const Json event = Json::parse(start_event);
  const auto sizes = event.find("layout");
  if (sizes == event.end() || !sizes->is_object()) return std::nullopt;
  const auto shape = shape_of(*sizes);
  if (!shape) return std::nullopt;
  Json json{{"world_size", shape->world_size},
            {"tp", shape->tp},
            {"pp", shape->pp},
            {"cp", shape->cp},
            {"dp", shape->dp()},
            {"ep", shape->ep},
            {"vpp", std::max(1, size_of(*sizes, "vpp"))},
            {"order", shape->order}};
  // Five numbers per rank; beyond the limit the page shows the sizes only.
  if (shape->world_size <= kMostPlaces) {
    const layout::RankGrid grid(*shape);
    Json places = Json::array();
    for (int rank = 0; rank < shape->world_size; ++rank) {
      const layout::RankPlace coordinates = grid.place(rank);
      places.push_back(
          {coordinates.tp_rank, coordinates.cp_rank, coordinates.dp_rank, coordinates.pp_rank, coordinates.ep_rank});
    }
    json["places"] = std::move(places);
  }
  return json.dump();
}

}  // namespace megalith::observe
