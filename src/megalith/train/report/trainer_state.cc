// Reads and writes trainer_state.json as Hugging Face's Trainer does, so that its tools (plots, resume) work with our
// checkpoints and the other way round. Reading is lenient about fields that are absent or unknown, and strict about
// wrong types.
#include "megalith/train/report/trainer_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/io/file_io.h"
#include "megalith/io/json_reader.h"

namespace megalith::train {
namespace {

using Json = nlohmann::ordered_json;

// Python's None is JSON's null.
template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Hugging Face's dataclass sorts its keys, also in the entries of the history.
Json sorted(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  std::ranges::sort(keys);
  Json result = Json::object();
  for (const std::string& key : keys) result[key] = object.at(key);
  return result;
}

Json history_json(const std::vector<MetricList>& history) {
  Json list = Json::array();
  for (const MetricList& line : history) list.push_back(sorted(line.to_json()));
  return list;
}

// Writes whole numbers as integers: counters and patience of callbacks.
Json record_json(const MetricList& numbers) {
  Json object = numbers.to_json();
  for (auto& value : object)
    if (value.is_number_float() &&
        value.get<double>() == static_cast<double>(static_cast<int64_t>(value.get<double>())))
      value = static_cast<int64_t>(value.get<double>());
  return object;
}

// {"EarlyStoppingCallback": {"args": {…}, "attributes": {…}}}, as Hugging Face writes it.
Json callbacks_json(const std::vector<CallbackRecord>& records) {
  Json object = Json::object();
  for (const CallbackRecord& record : records)
    object[record.name] = {{"args", record_json(record.args)}, {"attributes", record_json(record.attributes)}};
  return sorted(object);
}

// Leaves the default if the field is absent.
void read_count(const io::JsonFields& fields, const char* key, int64_t& value) {
  const auto given = fields.optional<int64_t>(key);
  if (given && *given < 0) fields.refuse(key, "be 0 or more");
  if (given) value = *given;
}

// Hugging Face stores intervals as given: numbers with or without a fraction.
void read_interval(const io::JsonFields& fields, const char* key, int64_t& value) {
  const auto given = fields.optional<double>(key);
  if (given && !(*given >= 0 && *given < 1e15)) fields.refuse(key, "be a number of steps");
  if (given) value = static_cast<int64_t>(*given);
}

std::vector<MetricList> read_history(const io::JsonFields& fields) {
  std::vector<MetricList> history;
  const Json* list = fields.value("log_history");
  if (list == nullptr) return history;
  if (!list->is_array()) fields.refuse("log_history", "be a list of objects");
  for (const Json& line : *list) {
    if (!line.is_object()) fields.refuse("log_history", "be a list of objects");
    history.push_back(MetricList::from_json(line));
  }
  return history;
}

std::vector<CallbackRecord> read_callbacks(const io::JsonFields& fields) {
  std::vector<CallbackRecord> records;
  const Json* object = fields.value("stateful_callbacks");
  if (object == nullptr) return records;
  if (!object->is_object()) fields.refuse("stateful_callbacks", "be an object");
  for (const auto& [name, value] : object->items()) {
    // Hugging Face writes a list of such objects for several callbacks of one kind, each with its own state; that case
    // is not supported, and the list is ignored.
    if (!value.is_object()) continue;
    CallbackRecord record{name, {}, {}};
    if (value.contains("args") && value["args"].is_object()) record.args = MetricList::from_json(value["args"]);
    if (value.contains("attributes") && value["attributes"].is_object())
      record.attributes = MetricList::from_json(value["attributes"]);
    records.push_back(std::move(record));
  }
  return records;
}

// Both forms of reading end here: a file, and an object that is already parsed.
TrainerState read_state(const io::JsonFields& fields) {
  TrainerState state;
  state.epoch = fields.optional<double>("epoch");
  read_count(fields, "global_step", state.global_step);
  read_count(fields, "max_steps", state.max_steps);
  read_interval(fields, "logging_steps", state.logging_steps);
  read_interval(fields, "eval_steps", state.eval_steps);
  read_interval(fields, "save_steps", state.save_steps);
  state.train_batch_size = fields.optional<int64_t>("train_batch_size");
  read_count(fields, "num_train_epochs", state.num_train_epochs);
  read_count(fields, "num_input_tokens_seen", state.num_input_tokens_seen);
  state.total_flos = fields.optional<double>("total_flos").value_or(0);
  state.log_history = read_history(fields);
  state.best_metric = fields.optional<double>("best_metric");
  state.best_global_step = fields.optional<int64_t>("best_global_step");
  state.best_model_checkpoint = fields.optional<std::string>("best_model_checkpoint");
  state.stateful_callbacks = read_callbacks(fields);
  state.rerun_state = fields.optional<std::string>("rerun_state").value_or("");
  state.is_local_process_zero = fields.optional<bool>("is_local_process_zero").value_or(true);
  state.is_world_process_zero = fields.optional<bool>("is_world_process_zero").value_or(true);
  return state;
}

}  // namespace

const CallbackRecord* TrainerState::find_callback(const std::string& name) const {
  const auto record = std::ranges::find(stateful_callbacks, name, &CallbackRecord::name);
  return record == stateful_callbacks.end() ? nullptr : &*record;
}

void TrainerState::keep_callback(CallbackRecord record) {
  const auto earlier = std::ranges::find(stateful_callbacks, record.name, &CallbackRecord::name);
  if (earlier != stateful_callbacks.end())
    *earlier = std::move(record);
  else
    stateful_callbacks.push_back(std::move(record));
}

// In alphabetical order, as Hugging Face writes it; fields that have no meaning here are written with HF's defaults.
Json TrainerState::to_json() const {
  Json json;
  json["best_global_step"] = or_null(best_global_step);
  json["best_metric"] = or_null(best_metric);
  json["best_model_checkpoint"] = or_null(best_model_checkpoint);
  json["epoch"] = or_null(epoch);
  json["eval_steps"] = eval_steps;
  json["global_step"] = global_step;
  json["is_hyper_param_search"] = false;
  json["is_local_process_zero"] = is_local_process_zero;
  json["is_world_process_zero"] = is_world_process_zero;
  json["log_history"] = history_json(log_history);
  json["logging_steps"] = logging_steps;
  json["max_steps"] = max_steps;
  json["num_input_tokens_seen"] = num_input_tokens_seen;
  json["num_train_epochs"] = num_train_epochs;
  if (!rerun_state.empty()) json["rerun_state"] = rerun_state;
  json["save_steps"] = save_steps;
  json["stateful_callbacks"] = callbacks_json(stateful_callbacks);
  json["total_flos"] = total_flos;
  json["train_batch_size"] = or_null(train_batch_size);
  json["trial_name"] = nullptr;
  json["trial_params"] = nullptr;
  return json;
}

TrainerState TrainerState::from_json(Json object, const std::string& file_name) {
  return read_state(io::JsonFile(std::move(object), file_name).fields());
}

void TrainerState::save(const std::filesystem::path& file) const {
  io::replace_text_file(file, to_json().dump(2) + "\n");
}

TrainerState TrainerState::load(const std::filesystem::path& file) {
  return read_state(io::read_json_file(file).fields());
}

}  // namespace megalith::train
