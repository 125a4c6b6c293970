// From options to datasets, by Megatron's rules:
//
//   prefix -> IndexedDataset -> GptDataset (one per split) -> BlendedDataset, if there are several prefixes
//
// Each dataset has an identity, a JSON object with everything that its indices depend on. Its text, formatted exactly
// as Python's json.dumps does, is hashed to the name of the cache files, so that Megalith and Megatron find each
// other's indices. The order of keys and the types of numbers in it must therefore not change.
#include "megalith/data/gpt/pretrain_datasets.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/data/gpt/blended_dataset.h"
#include "megalith/data/gpt/gpt_dataset.h"
#include "megalith/data/gpt/numpy_random.h"
#include "megalith/data/indexed/indexed_dataset.h"
#include "megalith/io/json_text.h"

namespace megalith::data {

namespace {

using io::Json;
using DatasetPtr = std::shared_ptr<const PretrainDataset>;

// The share of samples that a blend builds beyond those it takes, so that rounding does not leave it short.
constexpr double kSurplus = 0.005;

// Returns what Python's json.dumps(value, indent=4) returns: Megatron hashes that text.
std::string identity_text(const Json& value) { return value.dump(4, ' ', true); }

// One dataset of a blend, or a whole split.
struct Member {
  DatasetPtr dataset;  // nullptr: there is no data, and none is needed
  Json identity;
};

// One call of make_pretrain_datasets.
class Builder {
 public:
  explicit Builder(const PretrainDataRequest& request) : request_(request) {}

  DatasetPtr build_mock(size_t split) {
    const auto source = std::make_shared<MockSequences>(request_.tokens.vocab_size, request_.tokens.eod_id);
    return build_member(source, nullptr, split, "1,1,1", request_.samples[split]).dataset;
  }

  // `split_text` divides each prefix into three splits; with nullptr, all of it belongs to `split`.
  DatasetPtr build(const Blend& blend, size_t split, const char* split_text) {
    // Megatron makes a blend of a single prefix with a weight only if the prefix is divided into splits.
    const bool single = blend.prefixes.size() == 1 && (!blend.weights || split_text == nullptr);
    if (single) return build_prefix(blend.prefixes[0], split, split_text, request_.samples[split]).dataset;
    return blend.weights ? build_weighted(blend, split, split_text) : build_by_length(blend, split, split_text);
  }

 private:
  // A split without data in one prefix has no data at all.
  DatasetPtr build_weighted(const Blend& blend, size_t split, const char* split_text) {
    check<ConfigError>(request_.samples[split].has_value(),
                       "the number of {} samples is not given; a blend with weights needs it", kSplitNames[split]);
    const std::vector<double> weights = normalized(*blend.weights);
    std::vector<Member> members;
    int64_t size = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double taken = std::ceil(static_cast<double>(*request_.samples[split]) * weights[i]);
      const auto built = static_cast<int64_t>(std::ceil(taken * (1 + kSurplus)));
      members.push_back(build_prefix(blend.prefixes[i], split, split_text, built));
      if (!members.back().dataset) return nullptr;
      size += static_cast<int64_t>(taken);
    }
    return join(blend, members, split, normalized(weights), size);  // again, as Megatron does: it may change last bits
  }

  // Without weights: one epoch of each prefix, all of it or, if fewer samples are requested, a proportional part.
  DatasetPtr build_by_length(const Blend& blend, size_t split, const char* split_text) {
    std::vector<Member> members;
    std::vector<int64_t> sizes;
    for (const std::string& prefix : blend.prefixes) {
      members.push_back(build_prefix(prefix, split, split_text, std::nullopt));
      if (!members.back().dataset) return nullptr;
      sizes.push_back(members.back().dataset->size());
      check<DataError>(sizes.back() > 0, "{} has fewer tokens for {} than one sample of {} takes", prefix,
                       kSplitNames[split], request_.seq_length + 1);
    }
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    if (!request_.samples[split]) return join_exhaustively(blend, members, split, sizes);
    const std::vector<double> weights(sizes.begin(), sizes.end());
    return join(blend, members, split, normalized(weights), std::min(*request_.samples[split], total));
  }

  // The two rules of a blend: so many samples by weight, or every sample of every member.
  DatasetPtr join(const Blend& blend, const std::vector<Member>& members, size_t split,
                  const std::vector<double>& weights, int64_t size) {
    return make_blend(blend, members, split, weights, size, [&] { return blend_by_weight(weights, size); });
  }

  DatasetPtr join_exhaustively(const Blend& blend, const std::vector<Member>& members, size_t split,
                               const std::vector<int64_t>& sizes) {
    return make_blend(blend, members, split, sizes, nullptr, [&] { return blend_exhaustively(sizes); });
  }

  // Takes the indices of the blend from the cache, if there is a cache folder, or builds them.
  DatasetPtr make_blend(const Blend& blend, const std::vector<Member>& members, size_t split, const Json& weights,
                        const Json& size, const std::function<BlendIndices()>& build_indices) {
    Json identity{{"class", "BlendedDataset"}, {"datasets", Json::array()}};
    std::vector<DatasetPtr> datasets;
    for (const Member& member : members) {
      identity["datasets"].push_back(member.identity);
      datasets.push_back(member.dataset);
    }
    identity["split"] = kSplitNames[split];
    identity["weights"] = weights;
    identity["size"] = size;
    BlendIndices indices;
    if (request_.data.cache_folder) {
      const IndexCacheKey key{*request_.data.cache_folder, "BlendedDataset", kSplitNames[split],
                              identity_text(identity)};
      const auto build_arrays = [&]() -> IndexArrays {
        const TaskProgress progress(fmt::format("blending {} datasets", datasets.size()));
        const BlendIndices built = build_indices();
        return {built.datasets, built.samples};
      };
      const auto accept = [&](const IndexArrays& arrays) {
        check<DataError>(arrays[0].shape().size() == 1 && arrays[0].shape() == arrays[1].shape(),
                         "{}: not the indices of a blend", key.path("dataset_index.npy").string());
      };
      IndexArrays arrays =
          load_or_build(key, {"dataset_index", "dataset_sample_index"}, build_arrays, accept, request_.wait);
      indices = {std::move(arrays[0]), std::move(arrays[1])};
    } else {
      indices = build_indices();
    }
    return std::make_shared<BlendedDataset>(std::move(datasets), std::move(indices), blend.prefixes);
  }

  Member build_prefix(const std::string& prefix, size_t split, const char* split_text, std::optional<int64_t> samples) {
    const auto source = std::make_shared<IndexedDataset>(prefix, request_.tokens.vocab_size);
    source->check_some();
    return build_member(source, prefix, split, split_text, samples);
  }

  // `path` is JSON null for mock data.
  Member build_member(const std::shared_ptr<const SequenceSource>& source, const Json& path, size_t split,
                      const char* split_text, std::optional<int64_t> samples) {
    const auto bounds = split_text != nullptr ? *parse_split(split_text)[split] : std::pair{0.0, 1.0};
    const auto [begin, end] = sequences_of(bounds, source->sequence_count());
    Member member{.identity = identity_of(path, split, split_text, samples)};
    // No data and none asked for: a test split of a small corpus, for example.
    if (begin == end && request_.samples[split] == 0) return member;
    check<DataError>(begin < end, "{} has {} sequences, of which none falls to {}{}. Give more data{}", source->name(),
                     source->sequence_count(), kSplitNames[split],
                     split_text != nullptr ? fmt::format(" (split \"{}\")", split_text) : "",
                     split_text != nullptr ? ", or another split" : "");
    const GptIndexRequest index{.begin = begin,
                                .end = end,
                                .samples = samples,
                                .seq_length = request_.seq_length,
                                .seed = static_cast<uint32_t>(request_.seed),
                                .keep_last_partial_sample = split == 1 && request_.keep_last_partial_validation_sample};
    const GptSampleOptions options{.eod_id = request_.tokens.eod_id,
                                   .pad_id = request_.tokens.pad_id,
                                   .eod_mask_loss = request_.data.eod_mask_loss,
                                   .reset_position_ids = request_.data.reset_position_ids,
                                   .reset_attention_mask = request_.data.reset_attention_mask};
    member.dataset =
        std::make_shared<GptDataset>(source, index, options, cache_key(path, split, member.identity), request_.wait);
    return member;
  }

  static const char* class_of(const Json& path) { return path.is_null() ? "MockGPTDataset" : "GPTDataset"; }

  // The keys, their order and their types are Megatron's: the text is hashed.
  Json identity_of(const Json& path, size_t split, const char* split_text, std::optional<int64_t> samples) const {
    Json matrix;
    if (split_text != nullptr)
      for (const auto& bounds : parse_split(split_text))
        matrix.push_back(bounds ? Json{bounds->first, bounds->second} : Json());
    // In Megatron's list the very first number is the integer 0, not 0.0.
    if (matrix.is_array() && matrix[0].is_array()) matrix[0][0] = 0;
    return {{"class", class_of(path)},
            {"dataset_path", path},
            {"num_samples", samples ? Json(*samples) : Json()},
            {"index_split", kSplitNames[split]},
            {"random_seed", request_.seed},
            {"sequence_length", request_.seq_length},
            {"split", split_text != nullptr ? Json(split_text) : Json()},
            {"split_matrix", matrix},
            {"tokenizer", io::parse_json(request_.tokens.identity, "the tokenizer's identity")}};
  }

  // Megatron's default folder lies beside the data; mock data has no path and is cached only in a given folder.
  std::optional<IndexCacheKey> cache_key(const Json& path, size_t split, const Json& identity) const {
    if (path.is_null() && !request_.data.cache_folder) return std::nullopt;
    const std::filesystem::path folder =
        request_.data.cache_folder ? *request_.data.cache_folder
                                   : std::filesystem::path(path.get<std::string>()) / "cache" / "GPTDataset_indices";
    return IndexCacheKey{folder, class_of(path), kSplitNames[split], identity_text(identity)};
  }

  const PretrainDataRequest& request_;
};

// Checks everything that does not depend on files, on every rank alike.
void check_request(const PretrainDataRequest& request) {
  request.data.sources.validate();
  check<ConfigError>(request.seq_length >= 1, "seq_length is {}; it must be at least 1", request.seq_length);
  check<ConfigError>(request.seed >= 0 && request.seed <= std::numeric_limits<uint32_t>::max(),
                     "seed is {}; for the order of the data it must be from 0 to 2^32 - 1", request.seed);
  for (size_t i = 0; i < kSplits; ++i)
    check<ConfigError>(request.samples[i].value_or(0) >= 0, "{} {} samples are requested; give 0 or more",
                       *request.samples[i], kSplitNames[i]);
  check(request.tokens.eod_id >= 0 && request.tokens.eod_id < request.tokens.vocab_size,
        "EOD is {}, but the vocabulary has {} tokens", request.tokens.eod_id, request.tokens.vocab_size);
}

}  // namespace

PretrainTokens pretrain_tokens(const tokenizer::Tokenizer& tokenizer, const std::string& path) {
  check<ConfigError>(tokenizer.eos_id().has_value(),
                     "the tokenizer {} has no EOS token, which ends documents; add eos_token to its "
                     "tokenizer_config.json",
                     path);
  PretrainTokens tokens{.vocab_size = tokenizer.id_end(), .eod_id = *tokenizer.eos_id()};
  const std::optional<int32_t> pad = tokenizer.pad_id();
  if (pad && pad != tokenizer.bos_id() && pad != tokenizer.eos_id() && pad != tokenizer.unk_id()) tokens.pad_id = pad;
  tokens.identity = Json{{"class", "HuggingFaceTokenizer"},
                         {"tokenizer_path", Json::array({path})},
                         {"vocab_size", tokenizer.vocab_size()}}
                        .dump();
  return tokens;
}

PretrainDatasets make_pretrain_datasets(const PretrainDataRequest& request) {
  check_request(request);
  const DataSources& sources = request.data.sources;
  Builder builder(request);
  PerSplit<DatasetPtr> datasets;
  for (size_t i = 0; i < kSplits; ++i) {
    if (sources.mock) datasets[i] = builder.build_mock(i);
    if (sources.all && parse_split(sources.split)[i])
      datasets[i] = builder.build(*sources.all, i, sources.split.c_str());
    if (sources.by_split[i]) datasets[i] = builder.build(*sources.by_split[i], i, nullptr);
  }
  return {datasets[0], datasets[1], datasets[2]};
}

MockSequences::MockSequences(int64_t vocab_size, int64_t eod_id)
    : vocab_size_(vocab_size), eod_id_(eod_id), lengths_(numpy_mock_lengths(4096, 100'000)) {}

void MockSequences::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  const int64_t last = length(sequence) - 1;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = offset + static_cast<int64_t>(i);
    out[i] = at == last ? eod_id_ : (at + 1) % vocab_size_;
  }
}

}  // namespace megalith::data
