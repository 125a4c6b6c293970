// Both files belong to a job and may be damaged or made up, so every line is checked before it counts, and is written
// again as JSON before it reaches a page. A histogram's line is cut into rows once, when it is read: a page asks for
// one row over all steps, and parsing every line for that would take seconds for a large model.
#include "megalith/observe/dashboard/step_records.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"

namespace megalith::observe {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostRows = 20'000;  // names of parts come from a file
constexpr int kMostBin = 1 << 12;     // beyond all exponents of fp32

std::string dumped(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

bool has_step(const Json& line) {
  return line.is_object() && line.contains("step") && line["step"].is_number_integer();
}

bool is_list(const Json& object, const char* key) { return object.contains(key) && object[key].is_array(); }

// Numbers of a side: the first bin, then counts. See observe/record_files.h.
bool is_side(const Json& histogram, const char* key) {
  if (!is_list(histogram, key)) return false;
  for (const Json& number : histogram[key])
    if (!number.is_number_integer()) return false;
  const Json& side = histogram[key];
  return side.empty() || (side[0].get<int64_t>() > -kMostBin && side[0].get<int64_t>() < kMostBin);
}

bool is_histogram(const Json& value) {
  return value.is_object() && value.contains("part") && value["part"].is_string() && value.contains("zeros") &&
         value["zeros"].is_number_integer() && value.contains("non_finite") &&
         value["non_finite"].is_number_integer() && is_side(value, "negative") && is_side(value, "positive");
}

// The middle of a bin that ends a quarter of a power of two after its beginning.
double bin_middle(int64_t bin) {
  const double exponent = std::floor(static_cast<double>(bin) / 4);
  return std::exp2(exponent) * (1 + (static_cast<double>(bin) - 4 * exponent + 0.5) / 4);
}

std::optional<double> root_mean_square(const Json& histogram) {
  double squares = 0, count = static_cast<double>(histogram["zeros"].get<int64_t>());
  for (const char* key : {"negative", "positive"}) {
    const Json& side = histogram[key];
    for (size_t i = 1; i < side.size(); ++i) {
      const double middle = bin_middle(side[0].get<int64_t>() + static_cast<int64_t>(i) - 1);
      const auto number = static_cast<double>(side[i].get<int64_t>());
      squares += number * middle * middle;
      count += number;
    }
  }
  if (!(count > 0) || !std::isfinite(squares)) return std::nullopt;
  return std::sqrt(squares / count);
}

template <typename Records>
Json steps_of(const Records& records) {
  Json steps = Json::array();
  for (const auto& record : records) steps.push_back(record.step);
  return steps;
}

}  // namespace

bool SamplesReader::update() {
  const auto clear = [this] {
    records_.clear();
    malformed_ = 0;
  };
  return tail_.poll([this](std::string_view line) { add(line); }, clear) != LineTail::Change::kNone;
}

void SamplesReader::add(std::string_view line) try {
  const Json sample = io::parse_json(line, "a line");
  if (!has_step(sample) || !is_list(sample, "generated") || !is_list(sample, "trained")) return void(++malformed_);
  std::string text = dumped(sample);
  const size_t bytes = text.size();
  records_.add({sample["step"].get<int64_t>(), std::move(text)}, bytes);
} catch (const DataError&) {
  ++malformed_;
}

std::string SamplesReader::steps_json() const { return steps_of(records_.all()).dump(); }

std::optional<std::string> SamplesReader::json(size_t record) const {
  if (record >= records_.all().size()) return std::nullopt;
  return records_.all()[record].text;
}

bool HistogramsReader::update() {
  return tail_.poll([this](std::string_view line) { add(line); }, [this] { clear(); }) != LineTail::Change::kNone;
}

void HistogramsReader::clear() {
  rows_.clear();
  row_numbers_.clear();
  records_.clear();
  malformed_ = 0;
}

size_t HistogramsReader::row_of(const std::string& kind, const std::string& part) {
  const auto [found, is_new] = row_numbers_.try_emplace(kind + " " + part, rows_.size());
  if (is_new) rows_.push_back({kind, part});
  return found->second;
}

void HistogramsReader::add(std::string_view line) try {
  const Json json = io::parse_json(line, "a line");
  if (!has_step(json)) return void(++malformed_);
  Record record{json["step"].get<int64_t>(), {}};
  size_t bytes = 0;
  for (const char* kind : {"weights", "gradients"}) {
    if (!is_list(json, kind)) return void(++malformed_);
    for (const Json& histogram : json[kind]) {
      if (!is_histogram(histogram) || rows_.size() > kMostRows) return void(++malformed_);
      const size_t row = row_of(kind, histogram["part"].get<std::string>());
      if (record.cells.size() <= row) record.cells.resize(row + 1);
      record.cells[row] = {dumped(histogram), root_mean_square(histogram)};
      bytes += record.cells[row].text.size();
    }
  }
  records_.add(std::move(record), bytes);
} catch (const DataError&) {
  ++malformed_;
}

std::string HistogramsReader::steps_json() const { return steps_of(records_.all()).dump(); }

std::string HistogramsReader::summary_json() const {
  Json rows = Json::array();
  for (size_t row = 0; row < rows_.size(); ++row) {
    Json sizes = Json::array();
    for (const Record& record : records_.all()) {
      const bool known = row < record.cells.size() && record.cells[row].size;
      sizes.push_back(known ? Json(*record.cells[row].size) : Json());
    }
    rows.push_back({{"kind", rows_[row].kind}, {"part", rows_[row].part}, {"size", std::move(sizes)}});
  }
  return dumped({{"steps", steps_of(records_.all())}, {"rows", std::move(rows)}});
}

std::optional<std::string> HistogramsReader::row_json(size_t row) const {
  if (row >= rows_.size()) return std::nullopt;
  std::string json =
      dumped({{"kind", rows_[row].kind}, {"part", rows_[row].part}, {"steps", steps_of(records_.all())}});
  json.back() = ',';
  json += "\"histograms\":[";
  for (const Record& record : records_.all()) {
    if (json.back() != '[') json += ',';
    json += row < record.cells.size() ? record.cells[row].text : "null";
  }
  return json + "]}";
}

}  // namespace megalith::observe
