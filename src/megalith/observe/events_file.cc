// One event is one line, appended by one write as soon as it happens, so that the dashboard can follow the file and a
// crash loses at most the line in progress. The file is never rewritten: a run that resumes adds to the history of the
// earlier ones, unlike metrics.jsonl, where a step has one line.
#include "megalith/observe/events_file.h"

#include <nlohmann/json.hpp>

#include "megalith/observe/straggler.h"
#include "megalith/observe/units.h"

namespace megalith::observe {

namespace {

using Json = nlohmann::ordered_json;

// The dashboard computes the place of every rank from these numbers (layout_json), so all that decide it are here.
Json layout_of(const layout::GridShape& shape) {
  return {{"world_size", shape.world_size},
          {"tp", shape.tp},
          {"pp", shape.pp},
          {"cp", shape.cp},
          {"ep", shape.ep},
          {"etp", shape.expert_tp()},
          {"vpp", shape.vpp.value_or(1)},
          {"order", shape.order}};
}

// Words of the file; programs compare them.
const char* why_skipped(train::StepOutcome outcome) {
  switch (outcome) {
    case train::StepOutcome::kLossNotFinite:
      return "loss";
    case train::StepOutcome::kGradientsNotFinite:
      return "gradients";
    case train::StepOutcome::kLeftOut:
      return "requested";
    case train::StepOutcome::kUpdated:
      break;
  }
  return "";
}

// Opens a file to append to. If a crash cut its last line, that line is ended first.
io::FileHandle reopen(const std::filesystem::path& path) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 32;  // a bound for reading; events take some 100 bytes each
  const bool cut = std::filesystem::exists(path) && !io::read_text_file(path, kMostBytes).ends_with('\n');
  io::FileHandle file = io::FileHandle::open_or_create(path);
  if (cut && file.size() > 0) file.write_at(file.size(), "\n", 1);
  return file;
}

}  // namespace

EventsFileCallback::EventsFileCallback(std::filesystem::path folder, Settings settings,
                                       std::optional<comm::RankLaunch> launch)
    : folder_(std::move(folder)), settings_(std::move(settings)), launch_(std::move(launch)) {}

void EventsFileCallback::append(const train::TrainerEvent& event, const char* what, const Json& details) {
  // Closed on all ranks but world process zero, which makes every event a no-op there.
  if (!file_.is_open()) return;
  Json line{{"time", seconds_since_1970()}, {"step", event.state.global_step}, {"event", what}};
  line.update(details);
  // Invalid UTF-8 (in a name given by the user) is replaced instead of ending the run.
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  file_.write_at(bytes_, text.data(), text.size());
  bytes_ += text.size();
}

void EventsFileCallback::on_train_begin(train::TrainerEvent& event) {
  if (!event.state.is_world_process_zero) return;
  io::make_folders(folder_);
  const std::filesystem::path path = folder_ / "events.jsonl";
  const int restarts = launch_ ? launch_->restarts : 0;
  // A restarted job may be at step 0 again, but its history counts.
  const bool fresh = event.state.global_step == 0 && restarts == 0;
  file_ = fresh ? io::FileHandle::create(path) : reopen(path);
  bytes_ = file_.size();
  if (restarts > 0) {
    Json details = Json::object();
    if (!launch_->earlier.empty()) details["detect_seconds"] = launch_->earlier.back().detect_seconds;
    append(event, "restart", details);
  }
  append(event, "start",
         {{"run_name", settings_.run_name},
          {"max_steps", event.state.max_steps},
          {"restarts", restarts},
          {"layout", layout_of(settings_.grid)}});
}

// The norm of gradients that are not finite says nothing, so it is not among the details.
void EventsFileCallback::on_step_end(train::TrainerEvent& event) {
  if (event.outcome == train::StepOutcome::kUpdated) return;
  Json details{{"why", why_skipped(event.outcome)}};
  for (const char* name : {"loss", "loss_scale"})
    if (const auto value = event.metrics.find(name)) details[name] = *value;  // nlohmann writes NaN as null
  append(event, "skip", details);
}

// One line may report several events: a straggler, an evaluation.
void EventsFileCallback::on_log(train::TrainerEvent& event) {
  const train::MetricList& line = event.metrics;
  const auto slowest = line.find("compute_seconds_max"), median = line.find("compute_seconds_median");
  // The same threshold as the warning of StragglerCallback, which has put the numbers into the line.
  if (slowest && median && *slowest > kSlow * *median)
    append(event, "straggler",
           {{"rank", static_cast<int64_t>(line.find("slowest_rank").value_or(0))},
            {"compute_seconds", *slowest},
            {"median_seconds", *median}});
  // eval_runtime is in every evaluation line; the loss is missing if the evaluation had no labels.
  if (!line.find("eval_runtime")) return;
  const auto loss = line.find("eval_loss");
  append(event, "evaluation", loss ? Json{{"loss", *loss}} : Json::object());
}

void EventsFileCallback::on_save(train::TrainerEvent& event) {
  append(event, "save", {{"checkpoint", event.folder.filename().string()}});
}

void EventsFileCallback::on_train_end(train::TrainerEvent& event) {
  append(event, "end", {{"finished", event.state.global_step >= event.state.max_steps}});
  file_ = {};
}

}  // namespace megalith::observe
