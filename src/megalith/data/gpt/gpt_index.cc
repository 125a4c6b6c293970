// The indices equal Megatron's bit for bit, so that a run draws the same samples and can use Megatron's caches. That
// fixes three things that look arbitrary: NumPy's generator and shuffle, one generator for all indices in the order
// documents, shuffle (the sample index draws nothing), and the types of the arrays.
#include "megalith/data/gpt/gpt_index.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/data/gpt/numpy_random.h"

namespace megalith::data {

namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
// Megatron's bound: numpy.iinfo(uint32).max - 1.
constexpr int64_t kUint32Samples = int64_t{std::numeric_limits<uint32_t>::max()} - 1;

// Returns the number of samples in a stream of tokens; each sample consumes seq_length of them, and one is left over as
// the last label.
int64_t samples_of(int64_t tokens, const GptIndexRequest& request) {
  return (tokens - 1 + (request.keep_last_partial_sample ? request.seq_length - 1 : 0)) / request.seq_length;
}

// Appends the sequences of `epochs` epochs, shuffled together: epochs are not kept apart within one call.
void append_shuffled(std::vector<int32_t>& documents, const GptIndexRequest& request, int64_t epochs,
                     NumpyRandom& random) {
  const size_t first = documents.size();
  for (int64_t epoch = 0; epoch < epochs; ++epoch)
    for (int64_t i = request.begin; i < request.end; ++i) documents.push_back(static_cast<int32_t>(i));
  random.shuffle(std::span(documents).subspan(first));
}

// All epochs are shuffled together, except a last one that is kept separate.
std::vector<int32_t> build_document_index(const GptIndexRequest& request, const EpochPlan& plan, NumpyRandom& random) {
  std::vector<int32_t> documents;
  documents.reserve(static_cast<size_t>(plan.epochs * (request.end - request.begin)));
  append_shuffled(documents, request, plan.separate_last_epoch ? plan.epochs - 1 : plan.epochs, random);
  if (plan.separate_last_epoch) append_shuffled(documents, request, 1, random);
  return documents;
}

// Walks over the document index once and records where every sample starts.
template <typename T>
IndexArray build_sample_index(const SequenceSource& source, const std::vector<int32_t>& documents,
                              const GptIndexRequest& request, const EpochPlan& plan, TaskProgress& progress) {
  constexpr int64_t kTold = int64_t{1} << 16;  // samples between two reports of progress
  std::vector<T> rows;
  rows.reserve(2 * static_cast<size_t>(plan.samples + 1));
  size_t at = 0;       // current entry of the document index
  int64_t offset = 0;  // first token of the next sample in that sequence
  rows.insert(rows.end(), {T{0}, T{0}});
  for (int64_t sample = 0; sample < plan.samples; ++sample) {
    int64_t missing = request.seq_length + 1;
    for (;;) {
      const int64_t rest = source.length(documents[at]) - offset;
      if (rest >= missing) {
        offset += missing - 1;  // the last token is the next sample's first
        break;
      }
      if (at + 1 == documents.size()) {  // the last, partial sample
        offset = std::max<int64_t>(offset + rest - 1, 0);
        break;
      }
      missing -= rest;
      offset = 0;
      ++at;
    }
    rows.insert(rows.end(), {static_cast<T>(at), static_cast<T>(offset)});
    if (sample % kTold == 0) progress.set(sample);
  }
  return {std::move(rows), {plan.samples + 1, 2}};
}

// A separate last epoch is shuffled within itself, so that its samples come after all others.
template <typename T>
IndexArray build_shuffle_index(const EpochPlan& plan, NumpyRandom& random) {
  std::vector<T> order(static_cast<size_t>(plan.samples));
  std::iota(order.begin(), order.end(), T{0});
  const auto first = static_cast<size_t>(plan.separate_last_epoch ? plan.samples_before_last : plan.samples);
  random.shuffle(std::span(order).first(first));
  random.shuffle(std::span(order).subspan(first));
  return {std::move(order), {plan.samples}};
}

// Over all sequences of the source, not only those of the request: Megatron decides the type of the array like that.
int64_t longest(const SequenceSource& source) {
  int64_t length = 0;
  for (int64_t i = 0; i < source.sequence_count(); ++i) length = std::max(length, source.length(i));
  return length;
}

}  // namespace

// As few epochs as give the requested samples; one token more is needed than samples consume, for the last label.
EpochPlan plan_epochs(const SequenceSource& source, const GptIndexRequest& request) {
  check(0 <= request.begin && request.begin <= request.end && request.end <= source.sequence_count() &&
            request.seq_length > 0 && request.samples.value_or(0) >= 0,
        "{}: no such samples: sequences {} to {} of {}, length {}", source.name(), request.begin, request.end,
        source.sequence_count(), request.seq_length);
  check<DataError>(request.end <= kInt32Max, "{} has {} sequences; at most 2^31 - 1 can be indexed: split it",
                   source.name(), source.sequence_count());
  EpochPlan plan;
  for (int64_t i = request.begin; i < request.end; ++i) plan.tokens_per_epoch += source.length(i);
  check<DataError>(plan.tokens_per_epoch > 0,
                   "{}: its sequences {} to {} hold no token, so that no sample can be made of them", source.name(),
                   request.begin, request.end);
  if (request.samples) {
    const int64_t wanted = *request.samples * request.seq_length + 1;
    plan.epochs = std::max<int64_t>(1, (wanted + plan.tokens_per_epoch - 1) / plan.tokens_per_epoch);
  }
  check<DataError>(plan.epochs <= kInt32Max,
                   "{}: {} samples of {} tokens need {} epochs of the {} tokens that are there; that cannot be meant",
                   source.name(), request.samples.value_or(0), request.seq_length, plan.epochs, plan.tokens_per_epoch);
  plan.samples = samples_of(plan.epochs * plan.tokens_per_epoch, request);
  if (plan.epochs > 1) {
    const auto whole = [&](int64_t tokens) { return (tokens - 1) / request.seq_length; };
    plan.samples_before_last = whole((plan.epochs - 1) * plan.tokens_per_epoch);
    // If only a small part of the last epoch is needed, mixing it in would leave out samples of all other epochs.
    const int64_t of_last = *request.samples - plan.samples_before_last;
    plan.separate_last_epoch = of_last < static_cast<int64_t>(0.80 * static_cast<double>(whole(plan.tokens_per_epoch)));
  }
  return plan;
}

GptIndices build_gpt_indices(const SequenceSource& source, const GptIndexRequest& request, bool shows_progress) {
  const EpochPlan plan = plan_epochs(source, request);
  TaskProgress progress("indexing " + source.name(), TaskProgress::Unit::kCount, plan.samples, "samples",
                        shows_progress);
  NumpyRandom random(request.seed);  // one generator for documents, then shuffle
  std::vector<int32_t> documents = build_document_index(request, plan, random);
  const auto entries = static_cast<int64_t>(documents.size());
  GptIndices indices;
  indices.samples = std::max(entries, longest(source)) <= kInt32Max
                        ? build_sample_index<int32_t>(source, documents, request, plan, progress)
                        : build_sample_index<int64_t>(source, documents, request, plan, progress);
  indices.documents = IndexArray(std::move(documents), {entries});
  indices.shuffle = plan.samples < kUint32Samples ? build_shuffle_index<uint32_t>(plan, random)
                                                  : build_shuffle_index<int64_t>(plan, random);
  return indices;
}

void check_gpt_indices(const GptIndices& indices, const SequenceSource& source, const GptIndexRequest& request,
                       const std::string& name) {
  const EpochPlan plan = plan_epochs(source, request);
  using Shape = std::vector<int64_t>;
  const bool fits = indices.documents.shape() == Shape{plan.epochs * (request.end - request.begin)} &&
                    indices.samples.shape() == Shape{plan.samples + 1, 2} &&
                    indices.shuffle.shape() == Shape{plan.samples};
  check<DataError>(fits, "{}: indices of another dataset: {} documents and {} samples; expected {} and {}", name,
                   indices.documents.rows(), indices.shuffle.rows(), plan.epochs * (request.end - request.begin),
                   plan.samples);
}

}  // namespace megalith::data
