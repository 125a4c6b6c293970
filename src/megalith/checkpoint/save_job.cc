#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/copy.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/checkpoint/save_job_internal.h"
#include "megalith/checkpoint/share_work.h"
#include "megalith/hf/file_io.h"

namespace megalith::checkpoint {

namespace {

namespace fs = std::filesystem;

// FNV-1a.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3U;
  return hash;
}

ShareItem share_item(const std::string& stem, const hf::HeldRectangle& held) {
  const std::string text =
      fmt::format("{}/{}/{}/{}", stem, held.tensor, fmt::join(held.offset, ","), fmt::join(held.data.sizes(), ","));
  return {hash_of(text), held.data.nbytes(), held.replica == 0};
}

// Items of all members of a group.
std::vector<std::vector<ShareItem>> items_of_all(const comm::Group& group, const std::vector<ShareItem>& mine) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(ShareItem));
  std::vector<std::vector<ShareItem>> all;
  for (const std::string& theirs : group.all_gather_bytes(bytes, "checkpoint: what ranks hold")) {
    auto& items = all.emplace_back(theirs.size() / sizeof(ShareItem));
    std::memcpy(items.data(), theirs.data(), items.size() * sizeof(ShareItem));
  }
  return all;
}

// Exclusive or over ranks with a sum: each bit in a lane of its own, four lanes of 16 bits a number. For fewer than
// 65536 ranks.
constexpr int64_t kLanes = 8;

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

// memcpy goes around the cache for what is large, which ATen's copy does not.
void copy_elements(const at::Tensor& to, const at::Tensor& from) {
  if (from.device().is_cpu() && from.is_contiguous())
    std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
  else
    to.copy_(from);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Saver::Job::Job(const parallel::ParallelContext& context, SaveRequest request)
    : context_(context),
      everyone_(context.world().world()),
      request_(std::move(request)),
      place_(request_.folder, "save", {.owner = false}) {
  plan_files();
  make_files();
  share();
}

Saver::Job::~Job() {
  if (thread_.joinable()) thread_.join();
}

void Saver::Job::plan_files() {
  for (const TensorFiles& tensors : request_.tensors) {
    Files& files = files_.emplace_back();
    hf::WeightWriterOptions options{.max_shard_bytes = tensors.one_file ? UINT64_MAX : request_.max_shard_bytes,
                                    .stem = tensors.stem};
    const size_t number = files_.size() - 1;
    options.on_write = [this, number](size_t file, uint64_t offset, const std::byte* data, uint64_t bytes) {
      files_[number].sums[file].add(offset, data, bytes);
    };
    files.writer = std::make_unique<hf::WeightWriter>(place_.path(), tensors.tensors, std::move(options));
    for (const uint64_t bytes : files.writer->file_bytes()) files.sums.emplace_back(bytes);
    files.elements.resize(tensors.tensors.size());
    for (size_t i = 0; i < tensors.tensors.size(); ++i) files.numbers.emplace(tensors.tensors[i].name, i);
  }
}

void Saver::Job::make_files() {
  std::string problem;
  if (context_.rank() == 0) {
    try {
      staged_.emplace(request_.folder, "save", hf::StagedFolderOptions{.owner = true, .overwrite = true});
      for (const Files& files : files_) files.writer->create_files();
    } catch (const std::exception& error) {
      problem = error.what();
      staged_.reset();
    }
  }
  problem = everyone_.broadcast_bytes(problem, 0, "checkpoint: files made");
  check<DataError>(problem.empty(), "{} could not be saved: {}", request_.folder.string(), problem);
}

// Replicas are found among the ranks that have the same part of the model: the data-parallel group.
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
  try {
    write_share();
  } catch (const std::exception& error) {
    error_ = error.what();
  }
  written_ = true;
}

void Saver::Job::write_share() {
  if (context_.rank() == 0 && request_.other_files) request_.other_files(place_.path());
  for (size_t f = 0; f < files_.size(); ++f) {
    Files& files = files_[f];
    for (const size_t i : files.mine) {
      const hf::HeldRectangle& held = request_.tensors[f].held[i];
      files.writer->write(held.tensor, held.offset, held.data);
      files.elements[files.numbers.at(held.tensor)] += held.data.numel();
    }
    files.writer->sync();
  }
}

void Saver::Job::write_in_background(at::Tensor& buffer) {
  thread_ = std::thread([this, &buffer] {
    try {
      copy_share(buffer);
    } catch (const std::exception& error) {
      error_ = error.what();
    }
    copied_ = true;
    copied_.notify_all();
    if (error_.empty())
      write();
    else
      written_ = true;
  });
  stalled_seconds_ = seconds_since(start_);
}

void Saver::Job::finish_copy() {
  if (copied_) return;
  const auto entered = Clock::now();
  copied_.wait(false);
  stalled_seconds_ += seconds_since(entered);
}

// Everything that others go on changing is replaced by its copy, or let go.
void Saver::Job::copy_share(at::Tensor& buffer) {
  constexpr int64_t kAlignment = 64;
  const at::NoGradGuard no_grad;
  const auto padded = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  int64_t total = 0;
  for (size_t f = 0; f < files_.size(); ++f)
    for (const size_t i : files_[f].mine)
      total += padded(static_cast<int64_t>(request_.tensors[f].held[i].data.nbytes()));
  if (!buffer.defined() || buffer.numel() < total)
    buffer = at::empty({total}, at::TensorOptions().dtype(at::kByte).pinned_memory(context_.device().is_cuda()));
  int64_t at = 0;
  for (size_t f = 0; f < files_.size(); ++f) {
    std::vector<hf::HeldRectangle>& held = request_.tensors[f].held;
    std::vector<hf::HeldRectangle> copies;
    for (const size_t i : files_[f].mine) {
      const auto bytes = static_cast<int64_t>(held[i].data.nbytes());
      const at::Tensor own = buffer.narrow(0, at, bytes).view(held[i].data.scalar_type()).view(held[i].data.sizes());
      copy_elements(own, held[i].data);
      copies.push_back({held[i].tensor, held[i].offset, own, 0});
      at += padded(bytes);
    }
    held = std::move(copies);
    for (size_t i = 0; i < held.size(); ++i) files_[f].mine[i] = i;
  }
}

// Every rank learns of every problem, and all throw the same.
void Saver::Job::agree_on_errors(const std::string& mine) const {
  std::vector<std::string> problems;
  int rank = 0;
  for (const std::string& theirs : everyone_.all_gather_bytes(mine, "checkpoint: did all ranks write")) {
    if (!theirs.empty()) problems.push_back(fmt::format("rank {}: {}", rank, theirs));
    ++rank;
  }
  check<DataError>(problems.empty(), "{} could not be saved. {}", request_.folder.string(), fmt::join(problems, "; "));
}

void Saver::Job::join_sums() {
  int64_t numbers = 0;
  for (const Files& files : files_) {
    numbers += static_cast<int64_t>(files.elements.size());
    for (const ChunkSums& sums : files.sums) numbers += static_cast<int64_t>(sums.parts().size()) * kLanes;
  }
  at::Tensor all = at::zeros({numbers}, at::kLong);
  auto* to = all.mutable_data_ptr<int64_t>();
  for (const Files& files : files_) {
    to = std::ranges::copy(files.elements, to).out;
    for (const ChunkSums& sums : files.sums) spread(sums.parts(), to);
  }
  all = all.to(context_.device());
  everyone_.all_reduce(all, comm::ReduceOp::kSum, "checkpoint: checksums");
  all = all.cpu();
  const auto* from = all.const_data_ptr<int64_t>();
  for (Files& files : files_) {
    for (int64_t& elements : files.elements) elements = *from++;
    for (ChunkSums& sums : files.sums) join(from, sums.parts());
  }
}

// Every element of every tensor by exactly one rank.
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
    }
  }
  check(wrong.empty(), "the ranks together do not hold each tensor once: {}", list_in_words(wrong, 8));
}

// Rank 0, once the sums are those of all ranks.
std::vector<FileRecord> Saver::Job::records() const {
  std::vector<FileRecord> records;
  for (const Files& files : files_) {
    const std::vector<std::string> names = files.writer->file_names();
    const std::vector<uint64_t> bytes = files.writer->file_bytes();
    for (size_t i = 0; i < names.size(); ++i) records.push_back({names[i], bytes[i], files.sums[i].crc32c()});
  }
  for (const auto& entry : fs::directory_iterator(place_.path())) {
    const std::string name = entry.path().filename().string();
    if (std::ranges::find(records, name, &FileRecord::name) == records.end())
      records.push_back(record_of(entry.path()));
  }
  std::ranges::sort(records, std::less<>(), &FileRecord::name);
  return records;
}

// Rank 0: from files to a checkpoint.
void Saver::Job::complete() {
  for (const Files& files : files_) files.writer->write_index();
  Manifest manifest{.step = request_.step, .layout = request_.layout, .holds = {}, .files = records()};
  for (const TensorFiles& tensors : request_.tensors) manifest.holds.push_back(tensors.stem);
  bytes_ = manifest.total_bytes();
  hf::write_text_file(place_.path() / kManifestName, manifest.to_json());
  staged_->commit();
  write_tracker(request_.folder);
}

SaveReport Saver::Job::finish() {
  const auto entered = Clock::now();
  if (thread_.joinable()) thread_.join();
  agree_on_errors(error_);
  join_sums();
  check_coverage();
  std::string problem;
  if (context_.rank() == 0) {
    try {
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
