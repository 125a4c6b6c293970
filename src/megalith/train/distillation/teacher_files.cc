// Reading checks in two steps. Opening reads the small tables of each file and compares them with the index, so that a
// file which is missing, cut short or another one is named before any work is spent. Rows are compared with their
// checksum when they are used, since they may be hundreds of gigabytes.
#include "megalith/train/distillation/teacher_files.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/crc32c.h"
#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_reader.h"
#include "megalith/train/distillation/teacher_shard_writer.h"

namespace megalith::train {

namespace {

namespace fs = std::filesystem;

// On disk; must not change.
constexpr const char* kIndexFile = "index.json";
constexpr const char* kIndexFormat = "megalith teacher logits 1";

uint32_t add_bytes(const at::Tensor& tensor, uint32_t before) {
  return tensor.defined() ? crc32c_register(tensor.const_data_ptr(), tensor.nbytes(), before) : before;
}

// Throws unless the tensor is there in the shape that the index asks for.
at::Tensor checked(const hf::SafetensorsFile& file, const char* name, hf::Dtype dtype,
                   const std::vector<int64_t>& shape) {
  const hf::TensorInfo* info = file.find(name);
  check<DataError>(
      info != nullptr && info->dtype == dtype && info->shape == shape,
      "{}: \"{}\" must be {} [{}], as index.json says; it is {}. Write the files again: megalith distill",
      file.path().string(), name, hf::name(dtype), fmt::join(shape, ", "),
      info == nullptr ? "missing" : fmt::format("{} [{}]", hf::name(info->dtype), fmt::join(info->shape, ", ")));
  return file.tensor(name);
}

// Returns rows [begin, begin + count) of a tensor that may be undefined.
at::Tensor rows_in(const at::Tensor& all, int64_t begin, int64_t count) {
  return all.defined() ? all.narrow(0, begin, count) : all;
}

std::vector<TeacherShard> shards_in(const io::JsonFields& fields) {
  std::vector<TeacherShard> shards;
  const io::Json* files = fields.value("files");
  if (files == nullptr || !files->is_array()) fields.refuse("files", "be a list of files");
  for (const io::Json& entry : *files) {
    const io::JsonFields file = io::JsonFile(entry, fields.file_name()).fields();
    shards.push_back({.file = file.required<std::string>("file"),
                      .samples = file.required<int64_t>("samples"),
                      .tokens = file.required<int64_t>("tokens"),
                      .crc32c = file.required<std::string>("crc32c")});
  }
  return shards;
}

}  // namespace

std::optional<int64_t> TeacherIndex::tail_of(double temperature) const {
  const auto found = std::ranges::find(temperatures, temperature);
  if (found == temperatures.end()) return std::nullopt;
  return found - temperatures.begin();
}

TeacherIndex read_teacher_index(const fs::path& folder) {
  check<DataError>(fs::is_regular_file(folder / kIndexFile),
                   "{} holds no {}, so it does not hold a teacher's logits; write them with megalith distill",
                   folder.string(), kIndexFile);
  const io::JsonFile file = io::read_json_file(folder / kIndexFile);
  const io::JsonFields fields = file.fields();
  const auto format = fields.optional<std::string>("format");
  if (format != kIndexFormat) fields.refuse("format", fmt::format("be \"{}\"", kIndexFormat));
  const auto dtype = hf::dtype_from_name(fields.required<std::string>("dtype"));
  if (dtype != hf::Dtype::kF32 && dtype != hf::Dtype::kBF16 && dtype != hf::Dtype::kF16)
    fields.refuse("dtype", "be F32, BF16 or F16");
  TeacherIndex index{.classes = fields.positive<int64_t>("top_k"),
                     .vocab_size = fields.positive<int64_t>("vocab_size"),
                     .dtype = *dtype,
                     .temperatures = fields.required<std::vector<double>>("temperatures"),
                     .teacher = fields.required<std::string>("teacher")};
  const io::JsonFields data = fields.object("data");
  for (const auto& [name, value] : data.whole().items()) index.data[name] = data.required<std::string>(name);
  index.shards = shards_in(fields);
  return index;
}

void write_teacher_index(const fs::path& folder, const TeacherIndex& index) {
  io::Json json{{"format", kIndexFormat}, {"teacher", index.teacher},       {"vocab_size", index.vocab_size},
                {"top_k", index.classes}, {"dtype", hf::name(index.dtype)}, {"temperatures", index.temperatures}};
  json["data"] = io::Json::object();
  for (const auto& [name, value] : index.data) json["data"][name] = value;
  json["files"] = io::Json::array();
  for (const TeacherShard& shard : index.shards)
    json["files"].push_back(
        {{"file", shard.file}, {"samples", shard.samples}, {"tokens", shard.tokens}, {"crc32c", shard.crc32c}});
  io::write_text_file(folder / kIndexFile, json.dump(2) + "\n");
}

int64_t checksum_of(const TaughtRows& rows) {
  uint32_t sum = add_bytes(rows.ids, 0);
  sum = add_bytes(rows.log_probs, sum);
  return add_bytes(rows.log_tails, sum);
}

std::string checksum_of_tables(const at::Tensor& keys, const at::Tensor& ends, const at::Tensor& checksums) {
  return fmt::format("{:08x}", add_bytes(checksums, add_bytes(ends, add_bytes(keys, 0))));
}

TeacherFiles::TeacherFiles(const fs::path& folder) : folder_(folder), index_(read_teacher_index(folder)) {
  for (const TeacherShard& listed : index_.shards) {
    shards_.push_back(open_shard(listed));
    list_samples(std::ssize(shards_) - 1);
  }
  // A text that occurs twice in the data has two equal entries; either will do.
  std::ranges::sort(places_);
}

TeacherFiles::Shard TeacherFiles::open_shard(const TeacherShard& listed) const {
  const hf::SafetensorsFile file(folder_ / listed.file);
  const int64_t s = listed.samples, n = listed.tokens, k = index_.classes;
  Shard shard{.path = file.path(),
              .keys = checked(file, kKeys, hf::Dtype::kI64, {s, 2}),
              .ends = checked(file, kEnds, hf::Dtype::kI64, {s}),
              .checksums = checked(file, kChecksums, hf::Dtype::kI64, {s}),
              .rows = {.ids = checked(file, kIds, hf::Dtype::kI32, {n, k}),
                       .log_probs = checked(file, kLogProbs, index_.dtype, {n, k}),
                       .log_tails = {}}};
  if (!index_.is_whole())
    shard.rows.log_tails = checked(file, kLogTails, hf::Dtype::kF32, {n, std::ssize(index_.temperatures)});
  const std::string found = checksum_of_tables(shard.keys, shard.ends, shard.checksums);
  check<DataError>(found == listed.crc32c,
                   "{} has the checksum {}, and index.json lists {}: the file is damaged, or another one. Write the"
                   " files again: megalith distill",
                   file.path().string(), found, listed.crc32c);
  return shard;
}

void TeacherFiles::list_samples(int64_t shard) {
  const Shard& of = shards_[static_cast<size_t>(shard)];
  const int64_t* keys = of.keys.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < of.keys.size(0); ++i)
    places_.push_back({{static_cast<uint64_t>(keys[2 * i]), static_cast<uint64_t>(keys[2 * i + 1])}, shard, i});
}

const TeacherFiles::Place* TeacherFiles::find(const SampleKey& key) const {
  const auto found = std::ranges::lower_bound(places_, key, {}, &Place::key);
  return found == places_.end() || found->key != key ? nullptr : &*found;
}

std::optional<int64_t> TeacherFiles::tokens_of(const SampleKey& key) const {
  const Place* place = find(key);
  if (place == nullptr) return std::nullopt;
  const int64_t* ends = shards_[static_cast<size_t>(place->shard)].ends.const_data_ptr<int64_t>();
  return ends[place->sample] - (place->sample == 0 ? 0 : ends[place->sample - 1]);
}

TaughtRows TeacherFiles::rows_of(const SampleKey& key) const {
  const Place* place = find(key);
  check(place != nullptr, "a sample is not in the teacher's files; check_taught looks for all of them");
  const Shard& shard = shards_[static_cast<size_t>(place->shard)];
  const int64_t* ends = shard.ends.const_data_ptr<int64_t>();
  const int64_t begin = place->sample == 0 ? 0 : ends[place->sample - 1], count = ends[place->sample] - begin;
  check<DataError>(begin >= 0 && count >= 0 && begin + count <= shard.rows.ids.size(0),
                   "{}: sample {} has the rows {} to {} of {}", shard.path.string(), place->sample, begin,
                   begin + count, shard.rows.ids.size(0));
  TaughtRows rows{rows_in(shard.rows.ids, begin, count), rows_in(shard.rows.log_probs, begin, count),
                  rows_in(shard.rows.log_tails, begin, count)};
  const int64_t expected = shard.checksums.const_data_ptr<int64_t>()[place->sample];
  check<DataError>(checksum_of(rows) == expected,
                   "{}: the checksum of sample {} does not match its rows: the file is damaged. Write the files again:"
                   " megalith distill",
                   shard.path.string(), place->sample);
  return rows;
}

}  // namespace megalith::train
