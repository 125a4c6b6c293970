#include "megalith/observe/live_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/hf/file_io.h"
#include "megalith/observe/units.h"

namespace megalith::observe {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLeastNanoseconds = 2'000'000'000;  // between two files

}  // namespace

void LiveFileCallback::on_log(train::TrainerEvent& event) {
  if (!event.metrics.find("loss") || clock_.steps() == 0) return;
  const StepClock::Means times = clock_.take();
  Json mine{{"compute_seconds", times.compute}, {"wait_seconds", times.wait}};
  if (settings_.peak_bytes) mine["peak_bytes"] = settings_.peak_bytes();
  if (settings_.take_experts)
    for (const train::ExpertLoad& each : settings_.take_experts())
      mine["experts"].push_back({{"layer", each.layer}, {"load", each.tokens}});
  const std::vector<std::string> all = world_.all_gather_bytes(mine.dump(), "what the ranks did");
  if (!event.state.is_world_process_zero) return;
  Json live{{"time", seconds_since_1970()}, {"step", event.state.global_step}, {"ranks", Json::array()}};
  std::vector<Json> experts;
  for (const std::string& bytes : all) {
    Json rank = Json::parse(bytes);
    if (rank.contains("experts"))
      for (Json& layer : rank["experts"]) experts.push_back(std::move(layer));
    rank.erase("experts");
    live["ranks"].push_back(std::move(rank));
  }
  std::ranges::sort(experts, {}, [](const Json& layer) { return layer.at("layer").get<int64_t>(); });
  if (!experts.empty()) live["experts"] = experts;
  text_ = live.dump() + "\n";
  if (written_ns_ == 0 || comm::monotonic_ns() - written_ns_ >= kLeastNanoseconds) write();
}

void LiveFileCallback::on_train_end(train::TrainerEvent&) { write(); }

void LiveFileCallback::write() {
  if (text_.empty()) return;
  hf::make_folders(settings_.folder);
  hf::replace_text_file(settings_.folder / "live.json", text_);
  text_.clear();
  written_ns_ = comm::monotonic_ns();
}

}  // namespace megalith::observe
