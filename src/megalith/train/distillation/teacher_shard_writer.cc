#include "megalith/train/distillation/teacher_shard_writer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "megalith/base/error.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_writer.h"

namespace megalith::train {

namespace {

// The least finite number of fp16: a log-probability below it would become -inf, whose exponential is 0 all the same.
constexpr double kLeastOfHalf = -65504;

at::Tensor joined(const std::vector<TaughtRows>& rows, at::Tensor TaughtRows::*member) {
  std::vector<at::Tensor> parts;
  for (const TaughtRows& each : rows) parts.push_back(each.*member);
  return at::cat(parts);
}

}  // namespace

TeacherShardWriter::TeacherShardWriter(std::filesystem::path folder, const TeacherIndex& index, int replica,
                                       uint64_t file_bytes)
    : folder_(std::move(folder)), index_(index), replica_(replica), file_bytes_(file_bytes) {}

// Rows are rounded here, so that their checksum is that of the bytes in the file.
void TeacherShardWriter::add(const SampleKey& key, const TaughtRows& rows) {
  check<DataError>(!rows.log_probs.isnan().any().item<bool>(),
                   "the teacher computes log-probabilities that are not numbers; check its weights");
  at::Tensor log_probs = rows.log_probs;
  if (index_.dtype == hf::Dtype::kF16) log_probs = log_probs.clamp_min(kLeastOfHalf);
  TaughtRows stored{rows.ids.to(at::kInt).contiguous(), log_probs.to(hf::scalar_type(index_.dtype)).contiguous(),
                    index_.is_whole() ? at::Tensor() : rows.log_tails.to(at::kFloat).contiguous()};
  for (const uint64_t part : key) keys_.push_back(static_cast<int64_t>(part));
  ends_.push_back((ends_.empty() ? 0 : ends_.back()) + stored.ids.size(0));
  checksums_.push_back(checksum_of(stored));
  for (const at::Tensor& tensor : {stored.ids, stored.log_probs, stored.log_tails})
    if (tensor.defined()) bytes_ += tensor.nbytes();
  rows_.push_back(std::move(stored));
  if (bytes_ >= file_bytes_) write_file();
}

std::vector<TeacherShard> TeacherShardWriter::finish() {
  if (!ends_.empty()) write_file();
  return std::move(written_);
}

void TeacherShardWriter::write_file() {
  const int64_t s = std::ssize(ends_), n = ends_.back(), k = index_.classes;
  const std::string stem = fmt::format("logits-{:05}-{:05}", replica_, written_.size());
  std::vector<hf::WeightSpec> specs{{kKeys, hf::Dtype::kI64, {s, 2}},
                                    {kEnds, hf::Dtype::kI64, {s}},
                                    {kChecksums, hf::Dtype::kI64, {s}},
                                    {kIds, hf::Dtype::kI32, {n, k}},
                                    {kLogProbs, index_.dtype, {n, k}}};
  if (!index_.is_whole()) specs.push_back({kLogTails, hf::Dtype::kF32, {n, std::ssize(index_.temperatures)}});
  hf::WeightWriter writer(folder_, specs, {.max_shard_bytes = UINT64_MAX, .stem = stem, .metadata = {}});
  writer.create_files();
  const at::Tensor keys = at::tensor(keys_).view({s, 2}), ends = at::tensor(ends_), sums = at::tensor(checksums_);
  writer.write(kKeys, keys);
  writer.write(kEnds, ends);
  writer.write(kChecksums, sums);
  writer.write(kIds, joined(rows_, &TaughtRows::ids));
  writer.write(kLogProbs, joined(rows_, &TaughtRows::log_probs));
  if (!index_.is_whole()) writer.write(kLogTails, joined(rows_, &TaughtRows::log_tails));
  writer.sync();
  written_.push_back({stem + ".safetensors", s, n, checksum_of_tables(keys, ends, sums)});
  keys_.clear();
  ends_.clear();
  checksums_.clear();
  rows_.clear();
  bytes_ = 0;
}

}  // namespace megalith::train
