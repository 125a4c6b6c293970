// progress.json: written with the field names below and read back strictly (a missing field is an error), since a run
// that continues with a default would silently train on the wrong data or rate. Only metric totals may be null, which
// stands for NaN, and only what older files lack (the log's skipped steps) may be absent.
#include "megalith/train/run_progress.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_reader.h"

namespace megalith::train {

namespace {

using io::Json;

// A sum that is NaN becomes null, and number() turns it back.
Json to_json(const MetricTotal& total) { return {{"name", total.name}, {"sum", total.sum}, {"weight", total.weight}}; }

// JSON has no NaN; null stands for it.
double number(const io::JsonFields& fields, const char* key) {
  return fields.optional<double>(key).value_or(std::numeric_limits<double>::quiet_NaN());
}

MetricTotal total_of(const io::JsonFields& fields) {
  return {
      .name = fields.required<std::string>("name"), .sum = number(fields, "sum"), .weight = number(fields, "weight")};
}

Json to_json(const TrainingLog::StepSums& sums) {
  Json metrics = Json::array();
  for (const MetricTotal& metric : sums.metrics) metrics.push_back(to_json(metric));
  return {{"steps", sums.steps}, {"loss", to_json(sums.loss)}, {"metrics", std::move(metrics)}};
}

TrainingLog::StepSums step_sums_of(const io::JsonFields& fields) {
  TrainingLog::StepSums sums;
  sums.steps = fields.required<int64_t>("steps");
  sums.loss = total_of(fields.object("loss"));
  if (const Json* metrics = fields.value("metrics"))
    for (const Json& metric : *metrics)
      sums.metrics.push_back(total_of(io::JsonFile(metric, fields.file_name()).fields()));
  return sums;
}

// The sums of the steps that were not skipped are in the log itself: they were there first.
Json to_json(const TrainingLog::Totals& log) {
  Json object = to_json(log.updated);
  object.update({{"skipped", to_json(log.skipped)},
                 {"nan_steps", log.nan_steps},
                 {"seconds", log.seconds},
                 {"real_tokens", log.real_tokens},
                 {"trained_tokens", log.trained_tokens},
                 {"media", log.media},
                 {"sounds", log.sounds},
                 {"media_tokens", log.media_tokens},
                 {"tower_flops", log.tower_flops},
                 {"all_steps", to_json(log.all_steps)}});
  return object;
}

TrainingLog::Totals log_of(const io::JsonFields& fields) {
  TrainingLog::Totals log;
  log.updated = step_sums_of(fields);
  if (const auto skipped = fields.optional_object("skipped")) log.skipped = step_sums_of(*skipped);
  log.nan_steps = fields.optional<int64_t>("nan_steps").value_or(0);
  log.seconds = number(fields, "seconds");
  log.real_tokens = fields.required<int64_t>("real_tokens");
  log.trained_tokens = fields.required<int64_t>("trained_tokens");
  log.media = fields.optional<int64_t>("media").value_or(0);
  log.sounds = fields.optional<int64_t>("sounds").value_or(0);
  log.media_tokens = fields.optional<int64_t>("media_tokens").value_or(0);
  log.tower_flops = fields.optional<double>("tower_flops").value_or(0);  // older checkpoints have none
  log.all_steps = total_of(fields.object("all_steps"));
  return log;
}

// Names in the file; they must not change.
constexpr std::pair<data::EpochEnd, const char*> kEpochEnds[] = {{data::EpochEnd::kDrop, "drop"},
                                                                 {data::EpochEnd::kWrap, "wrap"},
                                                                 {data::EpochEnd::kContinue, "continue"},
                                                                 {data::EpochEnd::kStop, "stop"}};

Json to_json(const data::SamplerOptions& sampler) {
  const char* end = nullptr;
  for (const auto& [value, name] : kEpochEnds)
    if (value == sampler.end) end = name;
  Json json{{"size", sampler.size}, {"shuffle", sampler.shuffle}, {"seed", sampler.seed}, {"end", end}};
  if (sampler.by_length) json["by_length"] = true;
  return json;
}

// An unknown `end`, from a later version, keeps the default; check_same_data compares only what decides the order.
data::SamplerOptions sampler_of(const io::JsonFields& fields) {
  data::SamplerOptions sampler{.size = fields.required<int64_t>("size"),
                               .shuffle = fields.required<bool>("shuffle"),
                               .seed = static_cast<uint64_t>(fields.required<int64_t>("seed")),
                               .by_length = fields.optional<bool>("by_length").value_or(false)};
  const auto end = fields.required<std::string>("end");
  for (const auto& [value, name] : kEpochEnds)
    if (end == name) sampler.end = value;
  return sampler;
}

// A required number that is not negative.
int64_t count(const io::JsonFields& fields, const char* key) {
  const auto value = fields.required<int64_t>(key);
  if (value < 0) fields.refuse(key, "be 0 or more");
  return value;
}

}  // namespace

// The three parts that are JSON already are parsed, so that the file is one readable document and not text inside text.
std::string RunProgress::to_json() const {
  Json position{{"epoch", data.position.epoch},
                {"consumed", data.position.consumed},
                {"consumed_samples", data.consumed_samples},
                {"sampler", sampler ? train::to_json(*sampler) : Json()}};
  Json json{{"optimizer", Json::parse(optimizer)},
            {"scheduler", Json::parse(scheduler)},
            {"scaler", Json::parse(scaler)},
            {"data", std::move(position)},
            {"log", train::to_json(log)},
            {"skipped_samples", skipped_samples},
            {"epoch_end_pending", epoch_end_pending}};
  if (of_other_program) json["of_other_program"] = true;
  return json.dump(2) + "\n";
}

RunProgress RunProgress::from_json(std::string_view text, const std::string& file_name) {
  const io::JsonFile file = io::parse_json_file(text, file_name);
  const io::JsonFields fields = file.fields();
  RunProgress progress;
  progress.optimizer = fields.object("optimizer").whole().dump();
  progress.scheduler = fields.object("scheduler").whole().dump();
  progress.scaler = fields.object("scaler").whole().dump();
  const io::JsonFields data = fields.object("data");
  progress.data = {{.epoch = count(data, "epoch"), .consumed = count(data, "consumed")},
                   count(data, "consumed_samples")};
  if (const auto sampler = data.optional_object("sampler")) progress.sampler = sampler_of(*sampler);
  progress.log = log_of(fields.object("log"));
  progress.skipped_samples = count(fields, "skipped_samples");
  progress.epoch_end_pending = fields.required<bool>("epoch_end_pending");
  progress.of_other_program = fields.optional<bool>("of_other_program").value_or(false);
  return progress;
}

}  // namespace megalith::train
