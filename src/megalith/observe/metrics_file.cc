#include "megalith/observe/metrics_file.h"

#include <nlohmann/json.hpp>

#include "megalith/io/file_io.h"
#include "megalith/observe/units.h"

namespace megalith::observe {

void MetricsFile::append(int64_t step, std::optional<double> epoch, const train::MetricList& metrics) {
  // A list keeps the order of insertion, so step and epoch lead the line.
  train::MetricList line{{"step", static_cast<double>(step)}};
  if (epoch) line.set("epoch", *epoch);
  for (const auto& [name, value] : metrics)
    if (name != "step" && name != "epoch") line.set(name, value);
  lines_.append(line.to_json().dump());
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
