// The format wants all samples of a metric together, so they are collected by name first. Two names of metrics.jsonl
// that become the same name here ("a/b", "a_b") would be two samples with the same labels, which Prometheus refuses:
// the first of them counts.
#include "megalith/observe/dashboard/prometheus.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace megalith::observe {

namespace {

using Json = nlohmann::ordered_json;

// Samples by metric, and in each by labels.
using Samples = std::map<std::string, std::map<std::string, double>>;

std::string metric_name(std::string_view name) {
  std::string plain = "megalith_";
  for (const char c : name) {
    const bool allowed = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    plain += allowed ? c : '_';
  }
  return plain;
}

// Bytes that are not UTF-8 would make the whole page unreadable; JSON's writer replaces them. Of its escapes the format
// knows those of quote, backslash and line break.
std::string label_value(const std::string& text) {
  std::string escaped;
  for (const char c : Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>()) {
    if (c == '"' || c == '\\') escaped += '\\';
    if (c == '\n')
      escaped += "\\n";
    else
      escaped += c;
  }
  return escaped;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// The members of a rank in live.json, those of "gpu" with that prefix.
void add_rank(Samples& samples, const Json& rank, const std::string& labels, const std::string& prefix) {
  if (!rank.is_object()) return;
  for (const auto& [name, value] : rank.items()) {
    if (value.is_number()) samples[metric_name(prefix + name)].try_emplace(labels, value.get<double>());
    if (name == "gpu") add_rank(samples, value, labels, prefix + "gpu_");
  }
}

void add_run(Samples& samples, const RunView& run) {
  const std::string labels = fmt::format("run=\"{}\"", label_value(run.name()));
  double step = 0;
  for (const MetricsReader::Series& series : run.metrics().series()) {
    samples[metric_name(series.name)].try_emplace(labels, series.values.last_y());
    step = std::max(step, series.values.last_x());
  }
  samples["megalith_step"][labels] = step;
  samples["megalith_running"][labels] = run.events().ended() ? 0 : 1;
  samples["megalith_alerts"][labels] = static_cast<double>(run.alerts().size());
  const Json live = Json::parse(run.live_json());
  if (!live.is_object() || !live.contains("ranks") || !live["ranks"].is_array()) return;
  for (size_t rank = 0; rank < live["ranks"].size(); ++rank)
    add_rank(samples, live["ranks"][rank], fmt::format("{},rank=\"{}\"", labels, rank), "rank_");
}

}  // namespace

std::string prometheus_text(std::span<const RunView> runs) {
  Samples samples;
  for (const RunView& run : runs) add_run(samples, run);
  std::string text;
  for (const auto& [name, values] : samples) {
    text += fmt::format("# TYPE {} gauge\n", name);
    for (const auto& [labels, value] : values) text += fmt::format("{}{{{}}} {}\n", name, labels, number_text(value));
  }
  return text;
}

}  // namespace megalith::observe
