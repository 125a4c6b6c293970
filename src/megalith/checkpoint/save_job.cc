// One save from plan to rename. The steps, and where ranks talk to each other:
//
//   plan_files                  every rank plans the same shared files                         -
//   make_files                  rank 0 creates folder and files                                broadcast
//   share                       replicas agree who writes which rectangle                      all-gather of hashes
//   write_share                 every rank writes its rectangles and syncs                     -
//   agree_on_errors             an error on one rank becomes an error on all                   all-gather
//   join_sums, check_coverage   checksums of shared files; each element written exactly once   one all-reduce
//   complete                    rank 0 writes manifest, renames, moves the tracker             gather, broadcast
//
// Between collectives no rank may throw, or the others would wait forever: errors are kept as text (keep_error) until
// the next step that exchanges them.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/copy.h"
#include "megalith/checkpoint/pieces.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/checkpoint/save_job_internal.h"
#include "megalith/checkpoint/share_work.h"
#include "megalith/io/file_io.h"

namespace megalith::checkpoint {

namespace {

namespace fs = std::filesystem;

// The 64-bit FNV-1a hash: fixed by its definition, unlike std::hash, which may differ between ranks' machines.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3U;
  return hash;
}

// The key stands for the rectangle: 64 bits instead of its name and numbers keep the all-gather small.
ShareItem share_item(const std::string& stem, const hf::HeldRectangle& held) {
  const std::string text =
      fmt::format("{}/{}/{}/{}", stem, held.tensor, fmt::join(held.offset, ","), fmt::join(held.data.sizes(), ","));
  return {hash_of(text), held.data.nbytes(), held.replica == 0};
}

// Returns the items of every member of a group.
std::vector<std::vector<ShareItem>> items_of_all(const comm::Group& group, const std::vector<ShareItem>& mine) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(ShareItem));
  std::vector<std::vector<ShareItem>> all;
  for (const std::string& theirs : group.all_gather_bytes(bytes, "checkpoint: what ranks hold")) {
    auto& items = all.emplace_back(theirs.size() / sizeof(ShareItem));
    std::memcpy(items.data(), theirs.data(), items.size() * sizeof(ShareItem));
  }
  return all;
}

// Checksums are combined by exclusive or, which collectives lack. A sum does it if no bit carries into the next: each
// bit of a 32-bit part gets a lane of 16 bits, four lanes per int64. The lowest bit of a lane's sum is then the
// exclusive or, for fewer than 65536 ranks.
//
//   int64 n of a part:  | bit 4n+3 | bit 4n+2 | bit 4n+1 | bit 4n |     16 bits each, n = 0 … 7
constexpr int64_t kLanes = 8;  // int64 numbers per part

void spread(const std::vector<uint32_t>& parts, int64_t*& to) {
  for (const uint32_t part : parts)
    for (int64_t n = 0; n < kLanes; ++n, ++to)
      for (int bit = 0; bit < 4; ++bit) *to |= static_cast<int64_t>((part >> (4 * n + bit)) & 1) << (16 * bit);
}

void join(const int64_t*& from, std::vector<uint32_t>& parts) {
  for (uint32_t& part : parts) {
    part = 0;
    for (int64_t n = 0; n < kLanes; ++n, ++from)
      for (int bit = 0; bit < 4; ++bit)
        part |= static_cast<uint32_t>((static_cast<uint64_t>(*from) >> (16 * bit)) & 1) << (4 * n + bit);
  }
}

// Returns Σ i modulo 2^64 over the flat indices i, within the whole tensor, of a rectangle's elements. With n elements,
// the first at index f, size s_d and stride t_d of dimension d:
//
//   Σ i = n f + Σ_d (n / s_d) (0 + 1 + … + s_d - 1) t_d
uint64_t sum_of_positions(const std::vector<int64_t>& shape, at::IntArrayRef offset, at::IntArrayRef sizes) {
  uint64_t first = 0, elements = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    first = first * static_cast<uint64_t>(shape[d]) + static_cast<uint64_t>(offset[d]);
    elements *= static_cast<uint64_t>(sizes[d]);
  }
  uint64_t sum = elements * first, stride = 1;
  for (size_t d = shape.size(); elements > 0 && d-- > 0; stride *= static_cast<uint64_t>(shape[d])) {
    const auto size = static_cast<uint64_t>(sizes[d]);
    sum += elements / size * (size * (size - 1) / 2) * stride;
  }
  return sum;
}

// Appends the records of a writer's files.
void add_records(const hf::WeightWriter& writer, const std::vector<ChunkSums>& sums, std::vector<FileRecord>& records) {
  const std::vector<std::string> names = writer.file_names();
  const std::vector<uint64_t> bytes = writer.file_bytes();
  for (size_t i = 0; i < names.size(); ++i) records.push_back({names[i], bytes[i], sums[i].crc32c()});
}

// Returns the name of a piece (pieces.h) after checking that it lies within the tensor.
std::string piece_of(const hf::WeightSpec& whole, const hf::HeldRectangle& held) {
  const auto sizes = held.data.sizes();
  bool inside = held.offset.size() == whole.shape.size() && sizes.size() == whole.shape.size();
  for (size_t d = 0; inside && d < sizes.size(); ++d)
    inside = held.offset[d] >= 0 && held.offset[d] + sizes[d] <= whole.shape[d];
  check(inside, "a rectangle [{}] at [{}] does not lie inside tensor {} of shape [{}]", fmt::join(sizes, ","),
        fmt::join(held.offset, ","), whole.name, fmt::join(whole.shape, ","));
  return PieceName{whole.name, whole.shape, held.offset}.text();
}

}  // namespace

Saver::Job::Job(const parallel::ParallelContext& context, SaveRequest request)
    : context_(context),
      everyone_(context.world().world()),
      request_(std::move(request)),
      place_(request_.folder, "save", {.owner = false}),
      copies_(context.device()) {
  plan_files();
  make_files();
  share();
  keep_error([this] { plan_own_files(); });  // concerns this rank alone: the others learn of it in finish()
}

Saver::Job::~Job() {
  if (thread_.joinable()) thread_.join();
}

// Shared files only: the same on every rank. Files of single ranks are planned once the work is shared.
void Saver::Job::plan_files() {
  for (const TensorFiles& tensors : request_.tensors) {
    Files& files = files_.emplace_back();
    files.elements.resize(tensors.tensors.size());
    files.positions.resize(tensors.tensors.size());
    for (size_t i = 0; i < tensors.tensors.size(); ++i) files.numbers.emplace(tensors.tensors[i].name, i);
    if (!tensors.per_writer)
      make_writer(files_.size() - 1, tensors.tensors,
                  {.max_shard_bytes = tensors.one_file ? UINT64_MAX : request_.max_shard_bytes, .stem = tensors.stem});
  }
}

// Makes the writer of files_[number], which passes every byte to the checksums as it writes it.
void Saver::Job::make_writer(size_t number, const std::vector<hf::WeightSpec>& tensors,
                             hf::WeightWriterOptions options) {
  options.on_write = [this, number](size_t file, uint64_t offset, const std::byte* data, uint64_t bytes) {
    files_[number].sums[file].add(offset, data, bytes);
  };
  Files& files = files_[number];
  files.writer = std::make_unique<hf::WeightWriter>(place_.path(), tensors, std::move(options));
  for (const uint64_t bytes : files.writer->file_bytes()) files.sums.emplace_back(bytes);
}

// Plans the file that this rank alone writes: the rectangles of its share, one after the other.
void Saver::Job::plan_own_files() {
  for (size_t f = 0; f < files_.size(); ++f) {
    const TensorFiles& tensors = request_.tensors[f];
    if (!tensors.per_writer || files_[f].mine.empty()) continue;
    std::vector<hf::WeightSpec> pieces;
    for (const size_t i : files_[f].mine) {
      const hf::HeldRectangle& held = tensors.held[i];
      const hf::WeightSpec& whole = tensors.tensors[files_[f].numbers.at(held.tensor)];
      pieces.push_back({piece_of(whole, held), whole.dtype, held.data.sizes().vec()});
    }
    make_writer(f, pieces, {.max_shard_bytes = UINT64_MAX, .stem = piece_stem(tensors.stem, context_.rank())});
  }
}

// Rank 0 creates the files, so that the others can open them for writing in place.
void Saver::Job::make_files() {
  std::string problem;
  if (context_.rank() == 0) {
    try {
      staged_.emplace(request_.folder, "save", io::StagedFolderOptions{.owner = true, .overwrite = true});
      for (const Files& files : files_)
        if (files.writer) files.writer->create_files();
    } catch (const std::exception& error) {
      problem = error.what();
      staged_.reset();
    }
  }
  problem = everyone_.broadcast_bytes(problem, 0, "checkpoint: files made");
  check<DataError>(problem.empty(), "{} could not be saved: {}", request_.folder.string(), problem);
}

// Divides the rectangles among the ranks that may hold the same ones: those with the same part of the model, which are
// the data-parallel group.
void Saver::Job::share() {
  std::vector<ShareItem> items;
  for (const TensorFiles& tensors : request_.tensors)
    for (const hf::HeldRectangle& held : tensors.held) items.push_back(share_item(tensors.stem, held));
  const comm::Group replicas = context_.dp(/*with_cp=*/true);
  const std::vector<bool> writes = share_work(items_of_all(replicas, items), static_cast<size_t>(replicas.rank()));
  size_t item = 0;
  for (size_t f = 0; f < files_.size(); ++f)
    for (size_t i = 0; i < request_.tensors[f].held.size(); ++i)
      if (writes[item++]) files_[f].mine.push_back(i);
}

void Saver::Job::write() {
  keep_error([this] {
    if (error_.empty()) write_share();
  });
  written_ = true;
}

void Saver::Job::keep_error(const std::function<void()>& part) {
  try {
    part();
  } catch (const std::exception& error) {
    if (error_.empty()) error_ = error.what();
  }
}

// Runs on the background thread or on the caller; makes no collective calls.
void Saver::Job::write_share() {
  int64_t bytes = 0;
  for (size_t f = 0; f < files_.size(); ++f)
    for (const size_t i : files_[f].mine) bytes += static_cast<int64_t>(request_.tensors[f].held[i].data.nbytes());
  // Training continues during a background save, and has a line of its own.
  const bool shown = context_.rank() == 0 && !in_background_;
  TaskProgress progress("saving " + request_.folder.filename().string(), TaskProgress::Unit::kBytes, bytes, "", shown);
  if (context_.rank() == 0 && request_.other_files) request_.other_files(place_.path());
  for (size_t f = 0; f < files_.size(); ++f) {
    Files& files = files_[f];
    if (!files.writer) continue;
    const TensorFiles& tensors = request_.tensors[f];
    if (tensors.per_writer) files.writer->create_files();
    for (const size_t i : files.mine) {
      const hf::HeldRectangle& held = tensors.held[i];
      const size_t number = files.numbers.at(held.tensor);
      if (tensors.per_writer)
        files.writer->write(piece_of(tensors.tensors[number], held), held.elements());
      else
        files.writer->write(held.tensor, held.offset, held.elements());
      progress.add(static_cast<int64_t>(held.data.nbytes()));
      files.elements[number] += held.data.numel();
      files.positions[number] += sum_of_positions(hf::shape_for(tensors.tensors[number].shape, held.offset.size()),
                                                  held.offset, held.data.sizes());
    }
    files.writer->sync();
  }
}

// Exchanges errors, so that all ranks throw the same one.
void Saver::Job::agree_on_errors(const std::string& mine) const {
  std::vector<std::string> problems;
  int rank = 0;
  for (const std::string& theirs : everyone_.all_gather_bytes(mine, "checkpoint: did all ranks write")) {
    if (!theirs.empty()) problems.push_back(fmt::format("rank {}: {}", rank, theirs));
    ++rank;
  }
  check<DataError>(problems.empty(), "{} could not be saved. {}", request_.folder.string(), fmt::join(problems, "; "));
}

// Combines the checksums of shared files, and the counts for check_coverage, in one all-reduce. The checksums of a
// rank's own files are complete already.
void Saver::Job::join_sums() {
  int64_t numbers = 0;
  const auto shared_sums = [this](size_t f) {
    return request_.tensors[f].per_writer ? std::span<ChunkSums>() : std::span(files_[f].sums);
  };
  for (size_t f = 0; f < files_.size(); ++f) {
    numbers += static_cast<int64_t>(files_[f].elements.size() + files_[f].positions.size());
    for (const ChunkSums& sums : shared_sums(f)) numbers += static_cast<int64_t>(sums.parts().size()) * kLanes;
  }
  at::Tensor all = at::zeros({numbers}, at::kLong);  // zeros: spread() only sets bits
  auto* to = all.mutable_data_ptr<int64_t>();
  for (size_t f = 0; f < files_.size(); ++f) {
    to = std::ranges::copy(files_[f].elements, to).out;
    to = std::ranges::copy(files_[f].positions, to).out;
    for (const ChunkSums& sums : shared_sums(f)) spread(sums.parts(), to);
  }
  all = all.to(context_.device());
  everyone_.all_reduce(all, comm::ReduceOp::kSum, "checkpoint: checksums");
  all = all.cpu();
  const auto* from = all.const_data_ptr<int64_t>();
  for (size_t f = 0; f < files_.size(); ++f) {
    for (int64_t& elements : files_[f].elements) elements = *from++;
    for (uint64_t& positions : files_[f].positions) positions = static_cast<uint64_t>(*from++);
    for (ChunkSums& sums : shared_sums(f)) join(from, sums.parts());
  }
}

// Returns the records of this rank's own files for rank 0, as the text of a manifest.
std::string Saver::Job::own_records() const {
  Manifest manifest;
  for (size_t f = 0; f < files_.size(); ++f)
    if (request_.tensors[f].per_writer && files_[f].writer)
      add_records(*files_[f].writer, files_[f].sums, manifest.files);
  return manifest.to_json();
}

// Checks that every element of every tensor was written by exactly one rank: the number of elements must be right, and
// their indices must add up to the sum over the whole tensor. (In a shared file the checksums would show it too; in
// files of single ranks nothing else would reveal a hole or a duplicate.)
void Saver::Job::check_coverage() const {
  std::vector<std::string> wrong;
  for (size_t f = 0; f < files_.size(); ++f) {
    const std::vector<hf::WeightSpec>& tensors = request_.tensors[f].tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
      int64_t expected = 1;
      for (const int64_t size : tensors[i].shape) expected *= size;
      if (files_[f].elements[i] != expected)
        wrong.push_back(
            fmt::format("{} elements of {} were written; it has {}", files_[f].elements[i], tensors[i].name, expected));
      else if (files_[f].positions[i] !=
               sum_of_positions(tensors[i].shape, std::vector<int64_t>(tensors[i].shape.size()), tensors[i].shape))
        wrong.push_back(fmt::format("some elements of {} were written twice and others not at all", tensors[i].name));
    }
  }
  check(wrong.empty(), "the ranks together do not hold each tensor once: {}", list_in_words(wrong, 8));
}

// Returns the records of all files. Called on rank 0 after join_sums. Files without tensors, which are small, are read
// back for their checksums.
std::vector<FileRecord> Saver::Job::records() const {
  std::vector<FileRecord> records = own_files_;
  for (size_t f = 0; f < files_.size(); ++f)
    if (!request_.tensors[f].per_writer) add_records(*files_[f].writer, files_[f].sums, records);
  for (const auto& entry : fs::directory_iterator(place_.path())) {
    const std::string name = entry.path().filename().string();
    if (std::ranges::find(records, name, &FileRecord::name) == records.end())
      records.push_back(record_of(entry.path()));
  }
  std::ranges::sort(records, std::less<>(), &FileRecord::name);
  return records;
}

// Turns the files into a checkpoint. Called on rank 0. The manifest comes last before the rename, and the tracker only
// after it: at every moment the tracker names a complete checkpoint.
void Saver::Job::complete() {
  bool in_pieces = false;
  for (size_t f = 0; f < files_.size(); ++f) {
    const TensorFiles& tensors = request_.tensors[f];
    in_pieces = in_pieces || tensors.per_writer;
    if (tensors.per_writer)
      write_piece_list(place_.path(), tensors.stem, tensors.tensors);
    else
      files_[f].writer->write_index();
  }
  Manifest manifest{.step = request_.step, .layout = request_.layout, .holds = {}, .files = records()};
  if (in_pieces) manifest.version = kVersionWithPieces;
  for (const TensorFiles& tensors : request_.tensors) manifest.holds.push_back(tensors.stem);
  bytes_ = manifest.total_bytes();
  io::write_text_file(place_.path() / kManifestName, manifest.to_json());
  staged_->commit();
  write_tracker(request_.folder);
}

// stalled_seconds_ > 0 marks a save in the background; in the foreground the caller waited for all of it.
SaveReport Saver::Job::finish() {
  const auto entered = Clock::now();
  if (thread_.joinable()) thread_.join();
  agree_on_errors(error_);
  join_sums();
  check_coverage();
  std::vector<std::string> own_files;
  if (std::ranges::any_of(request_.tensors, &TensorFiles::per_writer))
    own_files = everyone_.gather_bytes(own_records(), /*root=*/0, "checkpoint: files of ranks");
  std::string problem;
  if (context_.rank() == 0) {
    try {
      for (const std::string& text : own_files)
        std::ranges::move(Manifest::from_json(text, "the list of a rank's own files").files,
                          std::back_inserter(own_files_));
      complete();
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = everyone_.broadcast_bytes(problem, 0, "checkpoint: complete");
  check<DataError>(problem.empty(), "{} could not be saved: {}", request_.folder.string(), problem);
  const double total = seconds_since(start_);
  return {.folder = request_.folder,
          .step = request_.step,
          .bytes = bytes_,
          .stalled_seconds = stalled_seconds_ > 0 ? stalled_seconds_ + seconds_since(entered) : total,
          .total_seconds = total};
}

}  // namespace megalith::checkpoint
