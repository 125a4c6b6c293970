// A folder is read in one of two ways. With an index, names come from its weight_map and a shard is opened when one of
// its tensors is first requested: a rank that needs a tenth of a model touches a tenth of its files. Without an index
// every file is opened at once to learn its names. In both cases finish() builds the lookup table and refuses names
// that are in two files. The only state that changes later is Slot::file, guarded by a mutex.
#include "megalith/hf/weight_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/hf/eight_bit_files.h"
#include "megalith/hf/four_bit_files.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/io/json_reader.h"

namespace megalith::hf {

namespace fs = std::filesystem;

// A file and what is known about it.
struct WeightFiles::Slot {
  fs::path path;
  std::vector<std::string> names;         // tensors that it holds, or should hold according to the index
  std::unique_ptr<SafetensorsFile> file;  // nullptr until it is opened
};

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Returns the names of the files in a folder, sorted. Links are followed: the hub's cache consists of them.
std::vector<std::string> file_names(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (std::error_code ignored; !it->is_directory(ignored)) names.push_back(it->path().filename().string());
  check<DataError>(!error, "cannot read the folder {}: {}", folder.string(), error.message());
  std::ranges::sort(names);
  return names;
}

// Files of an adapter and a value head are skipped: they may lie beside the weights of the base.
std::vector<std::string> matching(const std::vector<std::string>& names, std::string_view prefix,
                                  std::string_view suffix) {
  std::vector<std::string> found;
  for (const std::string& name : names)
    if (name.starts_with(prefix) && name.ends_with(suffix) && !name.starts_with("adapter") &&
        !name.starts_with("value_head."))
      found.push_back(name);
  return found;
}

// Returns whether a file holds weights in PyTorch's pickle format, or is the index of such files.
// training_args.bin is a pickle, too, but not of weights.
bool is_pickle(const std::string& name) {
  if (name.ends_with(".index.json")) return name.starts_with("pytorch_model");
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  return ends(".pt") || ends(".pth") || ends(".ckpt") || (ends(".bin") && name != "training_args.bin");
}

// Pickle files run code when they are read, so the message shows how to convert them instead.
[[noreturn]] void refuse_folder_without_weights(const fs::path& folder, const std::vector<std::string>& names) {
  std::vector<std::string> pickles;
  std::ranges::copy_if(names, std::back_inserter(pickles), is_pickle);
  if (pickles.empty())
    throw DataError(fmt::format("{} holds no weights: neither {}, {} nor another *.safetensors file. It holds: {}",
                                folder.string(), kSingleFile, kIndexFile, list_in_words(names)));
  const std::string from = (folder / "").parent_path().string(), to = from + "-safetensors";
  throw DataError(
      fmt::format("{} holds its weights as pickle files only ({}). Reading one runs whatever code is in it, so they "
                  "are not read. Convert "
                  "them once:\n  python3 -c 'from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; "
                  "M.from_pretrained(\"{}\", torch_dtype=\"auto\").save_pretrained(\"{}\", safe_serialization=True); "
                  "T.from_pretrained(\"{}\").save_pretrained(\"{}\")'\nand use {}",
                  from, list_in_words(pickles), from, to, from, to, to));
}

// Returns the shards that a name like `model-00001-of-00003.safetensors` implies and that are not there.
std::vector<std::string> absent_siblings(const std::vector<std::string>& files) {
  std::set<std::string> absent;
  for (const std::string& file : files) {
    const size_t of = file.find("-of-");
    const size_t dash = of == std::string::npos ? of : file.rfind('-', of - 1);
    if (dash == std::string::npos) continue;
    const size_t digits = of - dash - 1;
    const auto total = parse_int(file.substr(of + 4, digits));
    if (!total || *total > 100'000 || !parse_int(file.substr(dash + 1, digits))) continue;
    // model-00002-of-00003 promises 1, 2 and 3.
    for (int64_t i = 1; i <= *total; ++i) {
      std::string sibling = file;
      sibling.replace(dash + 1, digits, fmt::format("{:0{}}", i, digits));
      if (!std::ranges::binary_search(files, sibling)) absent.insert(sibling);
    }
  }
  return {absent.begin(), absent.end()};
}

// Lists every missing shard at once; each of them may take hours to download.
void refuse_missing(const fs::path& folder, const std::vector<std::string>& missing, const std::string& promised_by) {
  check<DataError>(missing.empty(), "{}: {} shards that {} are missing or cannot be read: {}. Download the model again",
                   folder.string(), missing.size(), promised_by, list_in_words(missing));
}

}  // namespace

bool stays_inside(const fs::path& file) {
  return !file.empty() && file.is_relative() && std::ranges::find(file, fs::path("..")) == file.end();
}

bool has_weight_files(const fs::path& folder) {
  if (!fs::is_directory(folder)) return false;
  const std::vector<std::string> names = file_names(folder);
  return std::ranges::binary_search(names, kIndexFile) || !matching(names, "", ".safetensors").empty();
}

WeightFiles::WeightFiles(const fs::path& folder) : folder_(folder) {
  check<DataError>(fs::is_directory(folder), "{} is not a folder; give a model folder with *.safetensors files",
                   folder.string());
  const std::vector<std::string> names = file_names(folder);
  const auto there = [&](const char* name) { return std::ranges::binary_search(names, name); };
  // A single file wins over an index, as in transformers: an index beside it is often a leftover.
  if (there(kSingleFile)) {
    read_all({kSingleFile});
  } else if (there(kIndexFile)) {
    read_index(folder / kIndexFile);
  } else {
    std::vector<std::string> files = matching(names, "model", ".safetensors");
    if (files.empty()) files = matching(names, "", ".safetensors");
    if (files.empty()) refuse_folder_without_weights(folder, names);
    refuse_missing(folder, absent_siblings(files), "the other file names promise");
    read_all(files);
  }
  finish();
}

WeightFiles::WeightFiles(const fs::path& folder, const std::string& file) : folder_(folder) {
  read_all({file});
  finish();
}

WeightFiles::~WeightFiles() = default;

void WeightFiles::read_index(const fs::path& index) {
  const io::JsonFile file = io::read_json_file(index);
  const io::JsonFields map = file.fields().object("weight_map");
  std::map<std::string, std::vector<std::string>> names_of;  // by shard
  for (const auto& [name, shard] : map.whole().items()) {
    if (!shard.is_string() || !stays_inside(shard.get_ref<const std::string&>()))
      throw DataError(fmt::format("{}: weight_map: {} is {}; it must be the name of a file in the same folder",
                                  index.string(), io::in_quotes(name), io::json_in_words(shard)));
    names_of[shard.get_ref<const std::string&>()].push_back(name);
  }
  check<DataError>(!names_of.empty(), "{}: weight_map is empty", index.string());
  std::vector<std::string> missing;
  for (auto& [shard, names] : names_of) {
    // Files are only looked for, not opened: a rank may need few of them.
    const fs::path path = folder_ / shard;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) missing.push_back(shard);
    slots_.push_back(std::make_unique<Slot>(Slot{path, std::move(names), nullptr}));
  }
  refuse_missing(folder_, missing, fmt::format("{} names", kIndexFile));
}

void WeightFiles::read_all(const std::vector<std::string>& files) {
  for (const std::string& name : files) {
    auto slot = std::make_unique<Slot>(Slot{folder_ / name, {}, nullptr});
    slot->file = std::make_unique<SafetensorsFile>(slot->path);
    for (const TensorInfo& tensor : slot->file->tensors()) slot->names.push_back(tensor.name);
    slots_.push_back(std::move(slot));
  }
}

// Builds the sorted list of names and the lookup table; refuses names that are in two files.
void WeightFiles::finish() {
  std::vector<std::string> twice;
  // The views point into slots_, whose names stay in place.
  std::unordered_map<std::string_view, size_t> seen;
  for (size_t i = 0; i < slots_.size(); ++i) {
    for (const std::string& name : slots_[i]->names) {
      const auto [first, fresh] = seen.emplace(name, i);
      if (!fresh)
        twice.push_back(fmt::format("{} in {} and {}", io::in_quotes(name),
                                    slots_[first->second]->path.filename().string(),
                                    slots_[i]->path.filename().string()));
    }
  }
  check<DataError>(twice.empty(),
                   "{}: {} tensors are in two files: {}. Remove the files that do not belong to the model",
                   folder_.string(), twice.size(), list_in_words(twice));
  for (const auto& [name, i] : seen) names_.emplace_back(name);
  std::ranges::sort(names_);
  for (const std::string& name : names_) slot_of_.emplace(name, seen.at(name));
  find_quantized();
}

WeightFiles::KnownQuantized WeightFiles::known_four_bit(const std::string& name, const std::string& state) const {
  check<DataError>(slot_of_.contains(name), "{} describes {} in 4 bits, and has no such tensor", folder_.string(),
                   name);
  const FourBitEntry entry = read_four_bit_entry(name, stored(state), folder_.string());
  return {.info = {.name = name, .dtype = entry.dtype, .shape = entry.shape},
          .parts = entry.parts(state),
          .read = [this, entry] {
            return read_four_bit_tensor(entry, [this](const std::string& part) { return stored(part); });
          }};
}

WeightFiles::KnownQuantized WeightFiles::known_eight_bit(const std::string& name, const std::string& scales) const {
  check<DataError>(slot_of_.contains(name), "{} has scales of {} in 8 bits, and no such tensor", folder_.string(),
                   name);
  std::vector<std::string> parts = eight_bit_parts(name);
  std::erase_if(parts, [this](const std::string& part) { return !slot_of_.contains(part); });
  const TensorInfo weight = *opened(slot(name)).find(name);
  check_eight_bit(weight, *opened(slot(scales)).find(scales), parts.size() > 1 ? stored(parts[1]) : at::Tensor(),
                  folder_.string());
  return {.info = {.name = name, .dtype = Dtype::kF32, .shape = weight.shape},
          .parts = std::move(parts),
          .read = [this, name] {
            return read_eight_bit_tensor(name, [this](const std::string& part) { return stored(part); });
          }};
}

// The tensors that belong to a quantized weight leave the list: readers see the weight alone.
void WeightFiles::find_quantized() {
  std::set<std::string, std::less<>> parts;
  for (const std::string& part : names_) {
    const std::string in_four = four_bit_name(part), in_eight = eight_bit_name(part);
    if (in_four.empty() && in_eight.empty()) continue;
    KnownQuantized known = in_four.empty() ? known_eight_bit(in_eight, part) : known_four_bit(in_four, part);
    parts.insert(known.parts.begin(), known.parts.end());
    const std::string name = known.info.name;
    quantized_.emplace(name, std::move(known));
  }
  std::erase_if(names_, [&](const std::string& name) { return parts.contains(name); });
}

std::optional<ops::QuantizedTensor> WeightFiles::quantized(std::string_view name) const {
  const auto found = quantized_.find(name);
  if (found == quantized_.end()) return std::nullopt;
  return found->second.read();
}

WeightFiles::Slot& WeightFiles::slot(std::string_view name) const {
  const auto found = slot_of_.find(name);
  if (found == slot_of_.end())
    throw DataError(fmt::format("{} holds no tensor {}", folder_.string(), io::in_quotes(name)));
  return *slots_[found->second];
}

const SafetensorsFile& WeightFiles::opened(Slot& slot) const {
  // One lock for all slots: opening takes milliseconds and happens once per file.
  const std::lock_guard lock(opening_);
  if (slot.file == nullptr) {
    auto file = std::make_unique<SafetensorsFile>(slot.path);
    std::vector<std::string> lacking;
    for (const std::string& name : slot.names)
      if (file->find(name) == nullptr) lacking.push_back(io::in_quotes(name));
    check<DataError>(lacking.empty(), "{} lacks {} tensors that {} lists: {}. Download the model again",
                     slot.path.string(), lacking.size(), kIndexFile, list_in_words(lacking));
    slot.file = std::move(file);
  }
  return *slot.file;
}

const TensorInfo* WeightFiles::find(std::string_view name) const {
  if (const auto view = views_.find(name); view != views_.end()) return &view->second.info;
  if (const auto found = quantized_.find(name); found != quantized_.end()) return &found->second.info;
  return contains(name) ? opened(slot(name)).find(name) : nullptr;
}

at::Tensor WeightFiles::tensor(std::string_view name) const {
  if (const auto view = views_.find(name); view != views_.end())
    return view->second.view.view(tensor(view->second.view.of));
  if (const auto found = quantized_.find(name); found != quantized_.end())
    return ops::from_quantized(found->second.read(), scalar_type(found->second.info.dtype))
        .view(found->second.info.shape);
  return stored(name);
}

void WeightFiles::release(std::string_view name) const {
  if (const auto view = views_.find(name); view != views_.end()) name = view->second.view.of;
  if (const auto found = quantized_.find(name); found != quantized_.end())
    for (const std::string& part : found->second.parts) opened(slot(part)).release(part);
  opened(slot(name)).release(name);
}

fs::path WeightFiles::file_of(std::string_view name) const {
  if (const auto view = views_.find(name); view != views_.end()) name = view->second.view.of;
  return slot(name).path;
}

void WeightFiles::add_views(const std::vector<View>& views) {
  std::set<std::string_view> replaced;
  for (const View& each : views) {
    TensorInfo info = *find(each.of);
    info.name = each.name;
    info.shape = each.view(tensor(each.of)).sizes().vec();
    views_[each.name] = {each, std::move(info)};
    replaced.insert(each.of);
  }
  std::erase_if(names_, [&](const std::string& name) { return replaced.contains(name); });
  for (const View& each : views)
    if (each.listed) names_.push_back(each.name);
  std::ranges::sort(names_);
}

uint64_t WeightFiles::total_bytes() const {
  uint64_t bytes = 0;
  for (const auto& slot : slots_) {
    const SafetensorsFile& file = opened(*slot);
    for (const std::string& name : slot->names) bytes += file.find(name)->bytes();
  }
  return bytes;
}

}  // namespace megalith::hf
