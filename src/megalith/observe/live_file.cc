// live.json shows the present only: it is replaced as a whole by a rename, so a reader sees one version or the next.
// Writing is a gather over all ranks, and all of them must decide alike whether it happens. Clocks of ranks differ, so
// the decision uses TrainerEvent::clock_seconds, which the trainer makes equal on every rank.
#include "megalith/observe/live_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/io/file_io.h"
#include "megalith/observe/units.h"

namespace megalith::observe {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kLeastSeconds = 2;  // between two files: as often as the dashboard asks

// Numbers that the driver does not give are left out.
Json json_of(const GpuReading& reading) {
  Json object = Json::object();
  const auto set = [&](const char* name, const std::optional<double>& value) {
    if (value) object[name] = *value;
  };
  set("utilization", reading.utilization);
  set("memory_used", reading.memory_used);
  set("memory_total", reading.memory_total);
  set("temperature", reading.temperature);
  set("watts", reading.watts);
  return object;
}

}  // namespace

void LiveFileCallback::on_log(train::TrainerEvent& event) {
  if (!event.metrics.find("loss")) return;
  if (!written_at_ || event.clock_seconds - *written_at_ >= kLeastSeconds) write(event);
}

void LiveFileCallback::on_train_end(train::TrainerEvent& event) { write(event); }

// Experts are reported by one rank per layer; rank 0 sorts them by layer.
void LiveFileCallback::write(const train::TrainerEvent& event) {
  if (clock_.steps() == 0) return;  // no step since the last file
  written_at_ = event.clock_seconds;
  const StepClock::Means times = clock_.take();
  Json own{{"compute_seconds", times.compute}, {"wait_seconds", times.wait}};
  if (settings_.peak_bytes) own["peak_bytes"] = settings_.peak_bytes();
  if (settings_.gpu) own["gpu"] = json_of(settings_.gpu());
  if (settings_.take_experts)
    for (const train::ExpertLoad& expert_load : settings_.take_experts())
      own["experts"].push_back({{"layer", expert_load.layer}, {"load", expert_load.tokens}});
  const std::vector<std::string> all = world_.gather_bytes(own.dump(), /*root=*/0, "what the ranks did");
  if (world_.rank() != 0) return;
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
  io::make_folders(settings_.folder);
  io::replace_text_file(settings_.folder / "live.json", live.dump() + "\n");
}

}  // namespace megalith::observe
