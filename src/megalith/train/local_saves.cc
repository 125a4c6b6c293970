// Between collectives no rank may throw, or the others would wait forever: errors are kept as text until agree(), which
// makes them errors of all ranks.
//
// A folder gets its name when the rank has written everything, and older ones are removed when all ranks have come that
// far. So whenever a rank dies, the newest step that all ranks have completed is still there.
#include "megalith/train/local_saves.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/chunk_sums.h"
#include "megalith/checkpoint/pieces.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/io/file_io.h"
#include "megalith/io/mapped_file.h"
#include "megalith/io/staged_folder.h"

namespace megalith::train {

namespace {

namespace fs = std::filesystem;
using checkpoint::FileRecord;

constexpr const char* kStateText = "texts.state";
constexpr const char* kProgressText = "texts.progress";
constexpr const char* kRng = "texts.rng";
constexpr int64_t kBlockBytes = 64 << 20;  // a file travels in blocks of this size

std::string part_stem(int rank) { return checkpoint::piece_stem("part", rank); }
std::string part_file(int rank) { return part_stem(rank) + ".safetensors"; }

at::Tensor as_bytes(const std::string& text) {
  return at::from_blob(const_cast<char*>(text.data()), {static_cast<int64_t>(text.size())}, at::kByte);
}
std::string as_text(const at::Tensor& bytes) {
  const at::Tensor flat = bytes.contiguous();
  return {static_cast<const char*>(flat.data_ptr()), static_cast<size_t>(flat.numel())};
}

// Runs `part` and returns the message of its failure; empty if there is none.
std::string message_of_failure(const std::function<void()>& part) {
  try {
    part();
  } catch (const std::exception& error) {
    return first_line(error.what());
  }
  return "";
}

// Receives blocks of a file in order.
class ArrivingFile {
 public:
  ArrivingFile(const fs::path& path, uint64_t bytes)
      : file_(io::FileHandle::create(path)), sums_(bytes), size_(bytes) {}
  void append(const at::Tensor& block) {
    const auto bytes = static_cast<uint64_t>(block.numel());
    file_.write_at(done_, block.data_ptr(), bytes);
    sums_.add(done_, static_cast<const std::byte*>(block.data_ptr()), bytes);
    done_ += bytes;
  }
  FileRecord end() {
    file_.sync();
    return {file_.path().filename().string(), size_, sums_.crc32c()};
  }

 private:
  io::FileHandle file_;
  checkpoint::ChunkSums sums_;
  uint64_t size_, done_ = 0;
};

// Sends the file at `path` from member `root` of the group to the others, which store it under the same name in
// `folder`; returns the record there. A root that cannot read its file, or has none, sends nothing. `problem` gets the
// message of a failure; the exchange is completed all the same.
std::optional<FileRecord> share_file(const comm::Group& group, int root, const fs::path& path, std::string& problem) {
  const bool sends = group.rank() == root;
  const auto attempt = [&](const std::function<void()>& part) {
    const std::string failure = message_of_failure(part);
    if (problem.empty()) problem = failure;
  };
  std::optional<io::MappedFile> source;
  if (sends && problem.empty()) attempt([&] { source.emplace(path); });
  const std::string size = group.broadcast_bytes(source ? std::to_string(source->size()) : "0", root, "local save");
  const auto bytes = static_cast<int64_t>(parse_int(size).value_or(0));
  if (bytes == 0) return std::nullopt;
  std::optional<ArrivingFile> target;
  if (!sends) attempt([&] { target.emplace(path, static_cast<uint64_t>(bytes)); });
  const at::Tensor block = at::empty({std::min(bytes, kBlockBytes)}, at::device(group.device()).dtype(at::kByte));
  for (int64_t done = 0; done < bytes; done += kBlockBytes) {
    const at::Tensor now = block.narrow(0, 0, std::min(kBlockBytes, bytes - done));
    if (sends) now.copy_(at::from_blob(const_cast<std::byte*>(source->data()) + done, now.sizes(), at::kByte));
    group.broadcast(now, root, "local save");
    if (target && problem.empty()) attempt([&] { target->append(now.to(at::kCPU)); });
  }
  std::optional<FileRecord> record;
  if (target && problem.empty()) attempt([&] { record = target->end(); });
  return record;
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
}

// Returns the parts in a folder's manifest whose files have their size.
std::vector<int> parts_in(const fs::path& folder, const checkpoint::SavedLayout& layout, int64_t world_size,
                          std::string& problem) {
  std::vector<int> parts;
  problem = message_of_failure([&] {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
    check<DataError>(manifest.layout == layout, "{} was written by {}", folder.string(), manifest.layout.in_words());
    const auto broken = checkpoint::problems_of_sizes(folder, manifest);
    check<DataError>(broken.empty(), "{}", fmt::join(broken, "; "));
    for (int rank = 0; rank < world_size; ++rank)
      if (manifest.has(part_stem(rank))) parts.push_back(rank);
  });
  return parts;
}

}  // namespace

std::vector<int> ranks_with_copies(int rank, int copies, int jump) {
  const int first = rank / (copies * jump) * (copies * jump) + rank % jump;
  std::vector<int> ranks;
  for (int i = 0; i < copies; ++i) ranks.push_back(first + i * jump);
  return ranks;
}

LocalSaves::LocalSaves(const LocalSaveSettings& settings, const checkpoint::SavedLayout& layout,
                       const parallel::ParallelContext& context)
    : settings_(settings),
      layout_(layout),
      context_(context),
      mine_(settings.folder / fmt::format("rank-{:05}", context.rank())) {}

fs::path LocalSaves::folder_of(int64_t step) const { return mine_ / checkpoint::folder_name(step); }

uint64_t LocalSaves::save(OptimizedModel& model, const TrainerState& state, RunProgress progress) {
  const int64_t step = state.global_step;
  const StateTexts texts = state_texts(model, state, std::move(progress));
  records_.clear();
  std::optional<io::StagedFolder> staged;
  std::string problem = message_of_failure([&] {
    staged.emplace(folder_of(step), "save", io::StagedFolderOptions{.owner = true, .overwrite = true});
    write_own(model, texts, staged->path());
  });
  if (settings_.copies > 1) copy_between_holders(staged ? staged->path() : mine_, problem);
  if (problem.empty())
    problem = message_of_failure([&] {
      checkpoint::Manifest manifest{.version = checkpoint::kVersionWithPieces, .step = step, .layout = layout_};
      std::ranges::sort(records_, {}, &FileRecord::name);
      manifest.files = records_;
      for (const FileRecord& record : records_) manifest.holds.push_back(fs::path(record.name).stem().string());
      io::write_text_file(staged->path() / checkpoint::kManifestName, manifest.to_json());
      staged->commit();
    });
  agree(problem, step);
  for (const checkpoint::StepFolder& other : checkpoint::list_checkpoints(mine_))
    if (other.step != step) remove_folder(other.folder);
  uint64_t bytes = 0;
  for (const FileRecord& record : records_) bytes += record.bytes;
  return bytes;
}

void LocalSaves::write_own(OptimizedModel& model, const StateTexts& texts, const fs::path& folder) {
  const at::NoGradGuard no_grad;
  const std::vector<parallel::ShardedTensor> tensors = state_tensors(model);
  const std::vector<std::pair<const char*, const std::string*>> strings{
      {kStateText, &texts.state}, {kProgressText, &texts.progress}, {kRng, &texts.rng}};
  std::vector<hf::WeightSpec> specs;
  std::vector<std::string> names;
  for (const parallel::ShardedTensor& part : tensors) {
    names.push_back(checkpoint::PieceName{part.name, part.global_shape, part.offset}.text());
    specs.push_back({names.back(), hf::dtype_of(part.local.scalar_type()), part.local.sizes().vec()});
  }
  for (const auto& [name, text] : strings)
    specs.push_back({name, hf::Dtype::kU8, {static_cast<int64_t>(text->size())}});
  std::vector<checkpoint::ChunkSums> sums;
  hf::WeightWriter writer(folder, specs,
                          {.max_shard_bytes = UINT64_MAX,
                           .stem = part_stem(context_.rank()),
                           .on_write = [&](size_t file, uint64_t offset, const std::byte* data, uint64_t bytes) {
                             sums[file].add(offset, data, bytes);
                           }});
  for (const uint64_t bytes : writer.file_bytes()) sums.emplace_back(bytes);
  writer.create_files();
  for (size_t i = 0; i < tensors.size(); ++i) writer.write(names[i], tensors[i].data());
  for (const auto& [name, text] : strings) writer.write(name, as_bytes(*text));
  writer.sync();
  records_.push_back({writer.file_names().at(0), writer.file_bytes().at(0), sums.at(0).crc32c()});
}

// Every holder sends its part in turn.
void LocalSaves::copy_between_holders(const fs::path& folder, std::string& problem) {
  const std::vector<int> ranks = ranks_with_copies(context_.rank(), settings_.copies, settings_.jump);
  const comm::Group holders = context_.world().group("local copies", ranks);
  for (int root = 0; root < holders.size(); ++root)
    if (auto record = share_file(holders, root, folder / part_file(ranks[static_cast<size_t>(root)]), problem))
      records_.push_back(std::move(*record));
}

void LocalSaves::agree(const std::string& mine, int64_t step) const {
  std::vector<std::string> problems;
  int rank = 0;
  for (const std::string& theirs : context_.world().world().all_gather_bytes(mine, "local save")) {
    if (!theirs.empty()) problems.push_back(fmt::format("rank {}: {}", rank, theirs));
    ++rank;
  }
  if (problems.empty()) return;
  remove_folder(folder_of(step));
  throw DataError(fmt::format("the local save of step {} failed. {}", step, list_in_words(problems, 8)));
}

std::map<int64_t, LocalSaves::Holders, std::greater<>> LocalSaves::find_parts() const {
  const comm::Group everyone = context_.world().world();
  nlohmann::ordered_json found = nlohmann::ordered_json::array(), problems = found;
  for (const checkpoint::StepFolder& saved : checkpoint::list_checkpoints(mine_)) {
    std::string problem;
    found.push_back({saved.step, parts_in(saved.folder, layout_, everyone.size(), problem)});
    if (!problem.empty()) problems.push_back(problem);
  }
  const nlohmann::ordered_json mine{{"found", found}, {"problems", problems}};
  std::map<int64_t, Holders, std::greater<>> steps;
  int rank = 0;
  for (const std::string& text : everyone.all_gather_bytes(mine.dump(), "local saves")) {
    const auto theirs = nlohmann::ordered_json::parse(text);
    for (const auto& step : theirs.at("found"))
      for (const int part : step.at(1).get<std::vector<int>>()) steps[step.at(0).get<int64_t>()][part].push_back(rank);
    if (everyone.rank() == 0)
      for (const auto& problem : theirs.at("problems"))
        log_warning("rank {}: {}; this local save is not used", rank, problem.get<std::string>());
    ++rank;
  }
  return steps;
}

// A rank's own copy comes first. Holders verify what they would send; a damaged copy is struck out and the next one
// tried, until all parts are whole or one has no copy left.
std::vector<int> LocalSaves::sources(int64_t step, Holders holders) const {
  const comm::Group everyone = context_.world().world();
  std::set<std::pair<int, int>> verified;  // part and holder
  while (true) {
    std::vector<int> chosen;
    for (int part = 0; part < everyone.size(); ++part) {
      const std::vector<int>& copies = holders[part];
      if (copies.empty()) return {};
      chosen.push_back(std::ranges::count(copies, part) > 0 ? part : copies.front());
    }
    nlohmann::ordered_json damaged = nlohmann::ordered_json::array();
    bool all_verified = true;
    for (int part = 0; part < everyone.size(); ++part) {
      const int holder = chosen[static_cast<size_t>(part)];
      if (!verified.insert({part, holder}).second) continue;
      all_verified = false;
      if (holder != everyone.rank()) continue;
      const std::string problem = message_of_failure([&] {
        checkpoint::Manifest manifest = checkpoint::read_manifest(folder_of(step));
        std::erase_if(manifest.files, [&](const FileRecord& file) { return file.name != part_file(part); });
        const auto problems = checkpoint::problems_of_content(folder_of(step), manifest);
        check<DataError>(problems.empty(), "{}", fmt::join(problems, "; "));
      });
      if (!problem.empty()) damaged.push_back({part, problem});
    }
    if (all_verified) return chosen;
    int rank = 0;
    for (const std::string& text : everyone.all_gather_bytes(damaged.dump(), "local saves")) {
      for (const auto& copy : nlohmann::ordered_json::parse(text)) {
        std::erase(holders[copy.at(0).get<int>()], rank);
        if (everyone.rank() == 0) log_warning("rank {}: {}", rank, copy.at(1).get<std::string>());
      }
      ++rank;
    }
  }
}

// In the order of the parts, so that ranks that take part in several exchanges meet in the same order.
void LocalSaves::fetch(int64_t step, const std::vector<int>& sources) const {
  std::string problem;
  for (int part = 0; part < static_cast<int>(sources.size()); ++part) {
    const int source = sources[static_cast<size_t>(part)];
    if (source == part || (context_.rank() != part && context_.rank() != source)) continue;
    if (context_.rank() == part) problem = message_of_failure([&] { io::make_folders(folder_of(step)); });
    const comm::Group pair = context_.world().group("local copy", {std::min(part, source), std::max(part, source)});
    share_file(pair, source < part ? 0 : 1, folder_of(step) / part_file(part), problem);
  }
  std::vector<std::string> problems;
  for (const std::string& theirs : context_.world().world().all_gather_bytes(problem, "local saves"))
    if (!theirs.empty()) problems.push_back(theirs);
  check<DataError>(problems.empty(), "a part of the local save of step {} could not be sent: {}", step,
                   list_in_words(problems, 8));
}

// Tensors are views of the mapped file, which is read when the model takes them.
ResumePoint LocalSaves::read(int64_t step) const {
  const hf::SafetensorsFile file(folder_of(step) / part_file(context_.rank()));
  std::vector<StatePart> parts;
  for (const hf::TensorInfo& info : file.tensors())
    if (auto piece = checkpoint::PieceName::parse(info.name))
      parts.push_back({piece->tensor, piece->global_shape, piece->offset, file.tensor(info.name)});
  const StateTexts texts{.step = step,
                         .state = as_text(file.tensor(kStateText)),
                         .progress = as_text(file.tensor(kProgressText)),
                         .rng = as_text(file.tensor(kRng))};
  return resume_point(texts, std::move(parts), file.path().string());
}

std::optional<ResumePoint> LocalSaves::load(int64_t oldest) {
  checkpoint::remove_leftovers(mine_);
  const bool logs = context_.rank() == 0;
  for (const auto& [step, holders] : find_parts()) {
    if (step < oldest) {
      if (logs)
        log_warning("the local save of step {} is older than the checkpoint of step {} and not used", step, oldest);
      return std::nullopt;
    }
    const std::vector<int> from = sources(step, holders);
    if (from.empty()) {
      if (logs) log_warning("the local save of step {} is not complete: the parts of some ranks are lost", step);
      continue;
    }
    fetch(step, from);
    int sent = 0;
    for (int part = 0; part < static_cast<int>(from.size()); ++part) sent += from[static_cast<size_t>(part)] != part;
    if (logs)
      log_info("continuing from the local save of step {}; {} of {} ranks got their part from another rank", step, sent,
               from.size());
    return read(step);
  }
  return std::nullopt;
}

void LocalSaves::clear() const {
  checkpoint::remove_leftovers(mine_);
  for (const checkpoint::StepFolder& old : checkpoint::list_checkpoints(mine_)) remove_folder(old.folder);
}

}  // namespace megalith::train
