// Scores every pair once, or takes the scores from the cache.
//
// Rank 0 alone reads and writes the cache, so the ranks need not share a file system; it broadcasts whether it found
// something, and the scores. Otherwise the reference model runs over the pairs like an evaluation: every rank fills in
// the rows of its own samples, and a sum over all ranks completes the table. Samples are assigned by number, so the
// table does not depend on the layout.
#include "megalith/train/preference/reference_scores.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "megalith/base/crc32c.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/task_progress.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/weight_files.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/io/content_hash.h"
#include "megalith/io/file_lock.h"
#include "megalith/io/staged_folder.h"
#include "megalith/peft/adapter_config.h"
#include "megalith/train/training_data.h"

namespace megalith::train {

namespace {

namespace fs = std::filesystem;

// On disk; must not change. A change of the format, or of what is computed, takes the next number.
constexpr const char* kFormat = "megalith reference scores 1";
constexpr const char* kStem = "scores";
constexpr const char* kChecksum = "crc32c";

// Hashes the reference model: its configuration, its weights, its adapters and the rows of a vocabulary that grows.
std::string key_of_model(const ReferenceCache& cache) {
  io::ContentHash key;
  key.add_file(cache.model / "config.json");
  for (const fs::path& adapter : cache.adapters)
    key.add_file(adapter / peft::kConfigName).add_file(adapter / fmt::format("{}.safetensors", peft::kWeightsStem));
  const hf::WeightFiles files(cache.model);
  std::set<fs::path> paths;
  for (const std::string& name : files.names()) paths.insert(files.file_of(name));
  TaskProgress progress("reading the reference model", TaskProgress::Unit::kCount, std::ssize(paths), "files");
  for (const fs::path& path : paths) {
    key.add(path.filename().string()).add_file(path);
    progress.add(1);
  }
  if (!cache.new_rows.empty()) key.add(cache.new_rows);
  if (cache.ld_alpha) key.add(fmt::format("ld_alpha {}", *cache.ld_alpha));
  return key.text();
}

// Hashes everything that the scores depend on: the model, its precision, and the ids and labels of all pairs in order.
std::string key_of(const data::Dataset& pairs, const std::string& model, at::ScalarType dtype) {
  io::ContentHash key;
  key.add(kFormat)
      .add(model)
      .add(dtype == at::kBFloat16 ? "bf16"
           : dtype == at::kHalf   ? "fp16"
                                  : "fp32")
      .add(pairs.size());
  const auto add = [&key](std::span<const int32_t> values) {
    key.add(std::string_view(reinterpret_cast<const char*>(values.data()), values.size_bytes()));
  };
  for (int64_t i = 0; i < pairs.size(); ++i) {
    const data::Sample pair = pairs.sample(i);
    check(pair.second() != nullptr, "reference scores are for pairs, but the data has single rows");
    for (const data::Sequence* row : {&pair.row, pair.second()}) {
      add(row->ids);
      add(row->labels);
    }
  }
  return key.text();
}

// Scores steer the whole training, so a silently damaged cache would be worse than none.
std::string checksum(const at::Tensor& scores) {
  return fmt::format("{:08x}", crc32c({static_cast<const char*>(scores.const_data_ptr()), scores.nbytes()}));
}

// Returns [pairs, 2]. Throws DataError for a broken file, or one of other data.
at::Tensor read_scores(const fs::path& folder, int64_t pairs) {
  const hf::SafetensorsFile file(folder / fmt::format("{}.safetensors", kStem));
  const at::Tensor scores = file.tensor(kStem).clone();
  check<DataError>(
      scores.scalar_type() == at::kFloat && scores.dim() == 2 && scores.size(0) == pairs && scores.size(1) == 2,
      "{} does not hold the scores of {} pairs", file.path().string(), pairs);
  const auto expected = file.metadata().find(kChecksum);
  check<DataError>(expected != file.metadata().end() && expected->second == checksum(scores),
                   "the checksum of {} does not match its content", file.path().string());
  return scores;
}

// Does nothing if another process is writing the same scores.
void write_scores(const fs::path& folder, const at::Tensor& scores) {
  const auto lock = io::FileLock::try_lock(folder.string() + ".lock");
  if (!lock) return;
  io::StagedFolder staged(folder, kStem, {.overwrite = true});
  hf::WeightWriter writer(staged.path(), {{kStem, hf::Dtype::kF32, scores.sizes().vec()}},
                          {.stem = kStem, .metadata = {{"format", kFormat}, {kChecksum, checksum(scores)}}});
  writer.create_files();
  writer.write(kStem, scores);
  writer.sync();
  staged.commit();
}

// Runs the model over all pairs and returns their scores, [pairs, 2], on all ranks. Collective over all ranks.
at::Tensor run_reference(const EvalData& data, ReferenceModel& reference, int64_t micro_batch_size,
                         const parallel::ParallelContext& context) {
  const EvalReader reader(data, micro_batch_size, context);
  const int64_t group = 4 * context.grid().shape().pp;  // enough micro-batches to keep a pipeline busy
  at::Tensor scores = at::zeros({reader.samples(), 2}, at::kFloat);
  TaskProgress progress("scoring with the reference model", TaskProgress::Unit::kCount, reader.samples(), "pairs",
                        context.rank() == 0);
  for (int64_t first = 0; first < reader.microbatches();) {
    const auto wanted = static_cast<int>(std::min(group, reader.microbatches() - first));
    std::vector<data::MicroBatch> batches;
    for (int i = 0; i < reference.group_size(wanted); ++i) batches.push_back(reader.microbatch(first + i));
    const std::vector<at::Tensor> log_probs = reference.log_probabilities(batches);
    for (size_t i = 0; reference.speaks_for_replica() && i < batches.size(); ++i) {
      const int64_t pairs = batches[i].samples;
      if (pairs == 0) continue;
      scores.narrow(0, reader.first_sample(first + static_cast<int64_t>(i)), pairs)
          .copy_(log_probs[i].view({2, pairs}).t());
    }
    first += std::ssize(batches);
    // All replicas are about as far as this one.
    progress.set(reader.samples() * std::min(first, reader.microbatches()) / reader.microbatches());
  }
  // Rows of other ranks are 0, so a sum completes the table.
  scores = scores.to(context.device());
  context.world().world().all_reduce(scores, comm::ReduceOp::kSum, "reference scores");
  scores = scores.cpu();
  check<DataError>(scores.isfinite().all().item<bool>(),
                   "the reference model computes log-probabilities that are not finite; check its weights");
  return scores;
}

// [pairs, 2] -> one entry per pair.
std::vector<data::ReferenceScores> as_list(const at::Tensor& scores) {
  const float* values = scores.const_data_ptr<float>();
  std::vector<data::ReferenceScores> list(static_cast<size_t>(scores.size(0)));
  for (size_t i = 0; i < list.size(); ++i) list[i] = {values[2 * i], values[2 * i + 1]};
  return list;
}

// Scores the datasets of a run, one after the other; loads the model at most once.
class Precomputation {
 public:
  Precomputation(const LoadReference& load, const ReferenceCache& cache, int64_t micro_batch_size,
                 const parallel::ParallelContext& context)
      : load_(load), cache_(cache), micro_batch_size_(micro_batch_size), context_(context) {}

  std::shared_ptr<const data::Dataset> scored(const EvalData& data) {
    const auto start = std::chrono::steady_clock::now();
    const int64_t pairs = data.dataset->size();
    const bool keeps = !cache_.folder.empty() && context_.rank() == 0;
    const fs::path place = keeps ? cache_.folder / key_of(*data.dataset, model_key(), cache_.dtype) : fs::path();
    at::Tensor scores = from_cache(place, pairs);
    if (!scores.defined()) {
      if (!reference_) reference_ = load_();
      scores = run_reference(data, *reference_, micro_batch_size_, context_);
      if (keeps) keep(place, scores);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      if (context_.rank() == 0) log_info("the reference model has scored {} pairs in {:.1f} s", pairs, seconds.count());
    }
    return data::with_reference_scores(data.dataset, as_list(scores));
  }

 private:
  const std::string& model_key() {
    if (model_key_.empty()) model_key_ = key_of_model(cache_);
    return model_key_;
  }

  // Returns the scores on all ranks, or an undefined tensor on all ranks if the cache has none that can be used.
  at::Tensor from_cache(const fs::path& place, int64_t pairs) const {
    at::Tensor scores;
    if (!place.empty() && fs::exists(place)) {
      try {
        scores = read_scores(place, pairs);
        log_info("reference scores of {} pairs are taken from {}", pairs, place.string());
      } catch (const DataError& error) {
        log_warning("kept reference scores are broken and are computed again: {}", error.what());
      }
    }
    const comm::Group world = context_.world().world();
    const at::Tensor has_scores = at::full({1}, scores.defined() ? 1 : 0, at::kLong).to(context_.device());
    world.broadcast(has_scores, 0, "whether reference scores are kept");
    if (has_scores.item<int64_t>() == 0) return {};
    if (!scores.defined()) scores = at::empty({pairs, 2}, at::kFloat);
    scores = scores.to(context_.device());
    world.broadcast(scores, 0, "kept reference scores");
    return scores.cpu();
  }

  // A cache that cannot be written costs the next run some time, not this run.
  static void keep(const fs::path& place, const at::Tensor& scores) {
    try {
      write_scores(place, scores);
    } catch (const Error& error) {
      log_warning("reference scores cannot be cached: {}", error.what());
    }
  }

  const LoadReference& load_;
  const ReferenceCache& cache_;
  const int64_t micro_batch_size_;
  const parallel::ParallelContext& context_;
  std::string model_key_;
  std::unique_ptr<ReferenceModel> reference_;
};

}  // namespace

void precompute_reference_scores(std::optional<TrainingData>& train, std::vector<EvalData>& eval,
                                 const LoadReference& load, const ReferenceCache& cache, int64_t micro_batch_size,
                                 const parallel::ParallelContext& context) {
  Precomputation work(load, cache, micro_batch_size, context);
  if (train) {
    check<ConfigError>(
        train->dataset != nullptr,
        "precompute_ref_log_probs and streaming exclude each other, because a stream cannot be read in advance");
    const data::Collator collator = *train->collator;
    train = numbered_data(work.scored({.dataset = train->dataset, .collator = collator}), train->sampler->options(),
                          collator);
  }
  for (EvalData& data : eval) data.dataset = work.scored({.dataset = data.dataset, .collator = data.collator});
}

}  // namespace megalith::train
