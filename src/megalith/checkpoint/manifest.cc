// Writing and reading manifest.json.
//
// The manifest protects itself: its last key is the checksum of the object without that key, dumped as compact JSON.
// Json keeps the order of keys, so parsing and dumping again gives the same bytes on every machine. The version is
// checked before the checksum, so that a newer format gets the message that helps.
#include "megalith/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/crc32c.h"
#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_reader.h"

namespace megalith::checkpoint {

namespace {

namespace fs = std::filesystem;
using io::Json;

constexpr const char* kFormat = "megalith-checkpoint";
constexpr uint64_t kMaxManifestBytes = 1'000'000'000;  // refuse absurd files before reading them into memory

// Checksums are 8 hexadecimal digits in the file, as other tools print them.
std::string hex(uint32_t value) { return fmt::format("{:08x}", value); }

uint32_t from_hex(const std::string& text, const std::string& file_name) {
  const bool good = text.size() == 8 &&
                    std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  check<DataError>(good, "{}: {} is not a checksum; expected 8 hexadecimal digits", file_name, io::in_quotes(text));
  return static_cast<uint32_t>(std::stoul(text, nullptr, 16));
}

// Names and order are part of the format: the checksum covers them.
Json layout_json(const SavedLayout& layout) {
  return Json{{"world_size", layout.world_size},
              {"tp", layout.tp},
              {"pp", layout.pp},
              {"vpp", layout.vpp},
              {"cp", layout.cp},
              {"ep", layout.ep},
              {"etp", layout.etp},
              {"distributed_optimizer", layout.distributed_optimizer}};
}

SavedLayout read_layout(const io::JsonFields& fields) {
  SavedLayout layout;
  layout.world_size = fields.positive<int64_t>("world_size");
  layout.tp = fields.positive<int64_t>("tp");
  layout.pp = fields.positive<int64_t>("pp");
  layout.vpp = fields.positive<int64_t>("vpp");
  layout.cp = fields.positive<int64_t>("cp");
  layout.ep = fields.positive<int64_t>("ep");
  layout.etp = fields.positive<int64_t>("etp");
  layout.distributed_optimizer = fields.required<bool>("distributed_optimizer");
  return layout;
}

// Reads one entry of "files".
FileRecord read_record(const Json& entry, const std::string& file_name) {
  const io::JsonFile file(entry, file_name);
  const io::JsonFields fields = file.fields();
  FileRecord record;
  record.name = fields.required<std::string>("name");
  // A name must not lead out of the folder or to a hidden file.
  check<DataError>(!record.name.empty() && record.name.find('/') == std::string::npos && record.name[0] != '.',
                   "{}: {} is not the name of a file in its folder", file_name, io::in_quotes(record.name));
  const auto bytes = fields.required<int64_t>("bytes");
  check<DataError>(bytes >= 0, "{}: {} has {} bytes", file_name, record.name, bytes);
  record.bytes = static_cast<uint64_t>(bytes);
  for (const std::string& text : fields.required<std::vector<std::string>>("crc32c"))
    record.crc32c.push_back(from_hex(text, file_name));
  check<DataError>(record.crc32c.size() == chunks_of(record.bytes), "{}: {} of {} bytes has {} checksums; expected {}",
                   file_name, record.name, record.bytes, record.crc32c.size(), chunks_of(record.bytes));
  return record;
}

// Removes the object's own checksum from it and compares it with the rest.
void check_unchanged(Json& root, const std::string& file_name) {
  const auto own = root.find("crc32c");
  check<DataError>(own != root.end() && own->is_string(), "{}: \"crc32c\", its own checksum, is missing", file_name);
  const std::string stored = own->get<std::string>();
  root.erase("crc32c");
  const std::string computed = hex(crc32c(root.dump()));
  check<DataError>(stored == computed, "{} was changed after it was written: its checksum is {}, and it says {}",
                   file_name, computed, stored);
}

}  // namespace

SavedLayout SavedLayout::of(const layout::GridShape& shape, bool distributed_optimizer) {
  return {.world_size = shape.world_size,
          .tp = shape.tp,
          .pp = shape.pp,
          .vpp = shape.vpp.value_or(1),
          .cp = shape.cp,
          .ep = shape.ep,
          .etp = shape.expert_tp(),
          .distributed_optimizer = distributed_optimizer};
}

// Leaves out sizes of 1, and etp if it equals tp.
std::string SavedLayout::in_words() const {
  std::string text = fmt::format("{} rank{}", world_size, world_size == 1 ? "" : "s");
  for (const auto& [name, size] : {std::pair{"tp", tp}, {"pp", pp}, {"vpp", vpp}, {"cp", cp}, {"ep", ep}})
    if (size > 1) text += fmt::format(", {} {}", name, size);
  if (etp != tp) text += fmt::format(", etp {}", etp);
  return text + (distributed_optimizer ? ", distributed optimizer" : "");
}

bool Manifest::has(std::string_view part) const { return std::ranges::find(holds, part) != holds.end(); }

uint64_t Manifest::total_bytes() const {
  uint64_t total = 0;
  for (const FileRecord& file : files) total += file.bytes;
  return total;
}

std::string Manifest::to_json() const {
  Json list = Json::array();
  for (const FileRecord& file : files) {
    Json sums = Json::array();
    for (const uint32_t sum : file.crc32c) sums.push_back(hex(sum));
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"crc32c", std::move(sums)}});
  }
  Json root{{"format", kFormat},
            {"version", version},
            {"step", step},
            {"layout", layout_json(layout)},
            {"holds", holds},
            {"chunk_bytes", kChunkBytes},
            {"files", std::move(list)}};
  root["crc32c"] = hex(crc32c(root.dump()));  // over the compact form; the file itself is indented
  return root.dump(1) + "\n";
}

// In order of what helps the user most: another file, a newer format, a damaged file, a wrong field.
Manifest Manifest::from_json(std::string_view text, const std::string& file_name) {
  Json root = io::parse_json(text, file_name);
  check<DataError>(root.is_object() && root.contains("format") && root["format"] == kFormat,
                   "{} is not the manifest of a Megalith checkpoint: its \"format\" is not \"{}\"", file_name, kFormat);
  const io::JsonFile file(root, file_name);
  const io::JsonFields fields = file.fields();
  const auto version = fields.positive<int64_t>("version");
  check<DataError>(version <= kFormatVersion,
                   "{} is of format version {}; this Megalith reads versions up to {}. Use a newer Megalith", file_name,
                   version, kFormatVersion);
  check_unchanged(root, file_name);  // before any field below is trusted
  Manifest manifest;
  manifest.version = version;
  manifest.step = fields.required<int64_t>("step");
  manifest.layout = read_layout(fields.object("layout"));
  manifest.holds = fields.required<std::vector<std::string>>("holds");
  const auto chunk = fields.required<int64_t>("chunk_bytes");
  check<DataError>(chunk == static_cast<int64_t>(kChunkBytes), "{}: \"chunk_bytes\" is {}; version 1 has {}", file_name,
                   chunk, kChunkBytes);
  const Json* files = fields.value("files");
  check<DataError>(files != nullptr && files->is_array(), "{}: \"files\" is not a list", file_name);
  for (const Json& entry : *files) manifest.files.push_back(read_record(entry, file_name));
  return manifest;
}

// stem.safetensors, stem-00001-of-00003.safetensors or stem-rank-00007.safetensors.
bool is_tensor_file(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem) || !name.ends_with(".safetensors")) return false;
  name.remove_prefix(stem.size());
  return name == ".safetensors" || name.starts_with('-');
}

bool has_manifest(const fs::path& folder) { return fs::is_regular_file(folder / kManifestName); }

// The manifest is written last, so a folder without one is incomplete or was not written by Megalith.
Manifest read_manifest(const fs::path& folder) {
  check<DataError>(fs::is_directory(folder), "{} is not a folder", folder.string());
  check<DataError>(has_manifest(folder),
                   "{} is not a complete Megalith checkpoint: it has no {}. The weights of a folder with a config.json"
                   " can be used as a model (model_name_or_path), but no run can be continued from it",
                   folder.string(), kManifestName);
  const fs::path path = folder / kManifestName;
  return Manifest::from_json(io::read_text_file(path, kMaxManifestBytes), path.string());
}

}  // namespace megalith::checkpoint
