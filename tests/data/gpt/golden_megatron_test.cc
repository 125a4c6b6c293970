// Indices, samples, cache files and blends as Megatron-Core makes them.
#include <gtest/gtest.h>

#include "megalith/data/gpt/blended_dataset.h"
#include "megalith/data/gpt/gpt_dataset.h"
#include "megalith/data/gpt/md5.h"
#include "megalith/data/gpt/numpy_random.h"
#include "megalith/data/gpt/pretrain_dataset.h"
#include "megalith/data/gpt/pretrain_datasets.h"
#include "megalith/data/indexed/sequence_source.h"
#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

using nlohmann::json;

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST(GoldenMegatron, numbers_json_shuffles) {
  for (const json& c : megatron_json("numbers.json").at("shuffles")) {
    SCOPED_TRACE(c.at("seed"));
    std::vector<int32_t> values(c.at("count").get<size_t>());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i);
    NumpyRandom(c.at("seed").get<uint32_t>()).shuffle(std::span(values));
    EXPECT_EQ(json(md5_hex(bytes_of(values))), c.at("md5"));
    values.resize(c.at("values").size());
    EXPECT_EQ(json(values), c.at("values"));
  }
}

TEST(GoldenMegatron, numbers_json_weights) {
  for (const json& c : megatron_json("numbers.json").at("weights"))
    EXPECT_EQ(normalized(c.at("given").get<std::vector<double>>()), c.at("normalized").get<std::vector<double>>());
}

TEST(GoldenMegatron, numbers_json_md5) {
  for (const json& c : megatron_json("numbers.json").at("md5"))
    EXPECT_EQ(json(md5_hex(c[0].get<std::string>())), c[1]) << c[0];
}

TEST(GoldenMegatron, numbers_json_splits) {
  for (const json& c : megatron_json("numbers.json").at("splits")) {
    SCOPED_TRACE(c.at("text"));
    const SplitBounds bounds = parse_split(c.at("text"));
    for (size_t i = 0; i < kSplits; ++i) {
      const json& expected = c.at("matrix")[i];
      ASSERT_EQ(bounds[i].has_value(), !expected.is_null());
      if (!bounds[i]) continue;
      EXPECT_EQ(*bounds[i], (expected.get<std::pair<double, double>>()));
      for (size_t n = 0; n < c.at("counts").size(); ++n)
        EXPECT_EQ(sequences_of(*bounds[i], c.at("counts")[n]),
                  (c.at("bounds")[n][i].get<std::pair<int64_t, int64_t>>()));
    }
  }
}

TEST(GoldenMegatron, numbers_json_blends) {
  for (const json& c : megatron_json("numbers.json").at("blends")) {
    SCOPED_TRACE(c.at("words"));
    const auto words = c.at("words").get<std::vector<std::string>>();
    const Blend blend = parse_blend(words, "data_path");
    EXPECT_EQ(blend.prefixes, c.at("prefixes").get<std::vector<std::string>>());
    EXPECT_EQ(blend.weights ? json(*blend.weights) : json(), c.at("weights"));
  }
}

// All numbers in their shape.
json array_json(const IndexArray& array) {
  json result = json::array();
  for (int64_t row = 0; row < array.rows(); ++row)
    if (array.shape().size() == 1)
      result.push_back(array[row]);
    else
      result.push_back({array[2 * row], array[2 * row + 1]});
  return result;
}

const char* type_name(const IndexArray& array) {
  switch (array.type()) {
    case IndexType::kInt16:
      return "int16";
    case IndexType::kInt64:
      return "int64";
    case IndexType::kUint32:
      return "uint32";
    case IndexType::kInt32:
      break;
  }
  return "int32";
}

void expect_sample(const PretrainDataset& dataset, const json& expected, bool reset_attention_mask) {
  SCOPED_TRACE(fmt::format("sample {}", expected.at("index").get<int64_t>()));
  const PretrainSample sample = dataset.sample(expected.at("index"));
  EXPECT_EQ(json(sample.tokens), expected.at("tokens"));
  EXPECT_EQ(json(sample.labels), expected.at("labels"));
  EXPECT_EQ(json(sample.loss_mask), expected.at("loss_mask"));
  EXPECT_EQ(json(sample.position_ids), expected.at("position_ids"));
  EXPECT_EQ(json(sample.dataset), expected.at("dataset"));
  std::vector<int32_t> bounds = expected.at("part_starts");
  bounds.push_back(static_cast<int32_t>(sample.tokens.size()));
  EXPECT_EQ(sample.cumulative_lengths, reset_attention_mask ? bounds : (std::vector<int32_t>{0, bounds.back()}));
}

size_t split_number(const json& name) {
  const auto found = std::ranges::find(kSplitNames, name.get<std::string>());
  return static_cast<size_t>(found - kSplitNames.begin());
}

GptIndexRequest request_of(const json& c, const SequenceSource& source) {
  const size_t split = split_number(c.at("index_split"));
  const auto [begin, end] = sequences_of(*parse_split(c.at("split"))[split], source.sequence_count());
  GptIndexRequest request{.begin = begin,
                          .end = end,
                          .seq_length = c.at("seq_length"),
                          .seed = c.at("seed"),
                          .keep_last_partial_sample = !c.at("drop_last_partial").get<bool>()};
  if (!c.at("num_samples").is_null()) request.samples = c.at("num_samples").get<int64_t>();
  return request;
}

TEST(GoldenMegatron, gpt_index_json_indices_and_samples) {
  const json golden = megatron_json("gpt_index.json");
  for (const json& c : golden.at("cases")) {
    SCOPED_TRACE(c.at("name"));
    const auto source = std::make_shared<IndexedDataset>(c.at("pair").get<std::string>(), golden.at("vocab_size"));
    const GptSampleOptions options{.eod_id = golden.at("eod"),
                                   .pad_id = c.at("pad").get<int64_t>(),
                                   .eod_mask_loss = c.at("eod_mask_loss"),
                                   .reset_position_ids = c.at("reset_position_ids"),
                                   .reset_attention_mask = c.at("reset_attention_mask")};
    const GptDataset dataset(source, request_of(c, *source), options);
    const GptIndices& indices = dataset.indices();
    EXPECT_EQ(array_json(indices.documents), c.at("document_index"));
    EXPECT_EQ(array_json(indices.samples), c.at("sample_index"));
    EXPECT_EQ(array_json(indices.shuffle), c.at("shuffle_index"));
    EXPECT_EQ(json({type_name(indices.documents), type_name(indices.samples), type_name(indices.shuffle)}),
              c.at("types"));
    for (const json& sample : c.at("samples")) expect_sample(dataset, sample, options.reset_attention_mask);
  }
}

DataSources sources_of(const json& options) {
  const auto blend = [&](const char* key) -> std::optional<Blend> {
    if (!options.contains(key)) return std::nullopt;
    return parse_blend(options.at(key).get<std::vector<std::string>>(), key);
  };
  DataSources sources{.all = blend("data_path"),
                      .by_split = {blend("train_data_path"), blend("valid_data_path"), blend("test_data_path")},
                      .mock = options.value("mock_data", false)};
  if (options.contains("split")) sources.split = options.at("split");
  return sources;
}

PerSplit<std::optional<int64_t>> sizes_of(const json& sizes) {
  PerSplit<std::optional<int64_t>> result;
  for (size_t i = 0; i < kSplits; ++i)
    if (!sizes[i].is_null()) result[i] = sizes[i].get<int64_t>();
  return result;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

// The identity as ordered text: a json object would sort its keys.
std::string tokenizer_identity(const json& golden) {
  return nlohmann::ordered_json{{"class", golden.at("tokenizer").at("class")},
                                {"tokenizer_path", golden.at("tokenizer").at("tokenizer_path")},
                                {"n", golden.at("tokenizer").at("n")}}
      .dump();
}

// The cache's files have the reference's names and bytes.
TEST(GoldenMegatron, gpt_index_json_cache_files) {
  const json golden = megatron_json("gpt_index.json");
  for (const json& c : golden.at("cases")) {
    SCOPED_TRACE(c.at("name"));
    if (c.at("cache").empty()) continue;
    const TempFolder temp;
    PretrainDataRequest request{.data = {.sources = {.all = Blend{{c.at("pair")}}, .split = c.at("split")}},
                                .seq_length = c.at("seq_length"),
                                .seed = c.at("seed"),
                                .tokens = {.vocab_size = golden.at("vocab_size"),
                                           .eod_id = golden.at("eod"),
                                           .pad_id = c.at("pad").get<int64_t>(),
                                           .identity = tokenizer_identity(golden)},
                                .keep_last_partial_validation_sample = !c.at("drop_last_partial").get<bool>()};
    request.data.cache_folder = temp.path();
    request.samples = {0, 0, 0};
    request.samples[split_number(c.at("index_split"))] = request_of(c, IndexedDataset(c.at("pair"))).samples;
    make_pretrain_datasets(request);
    for (const auto& [name, md5] : c.at("cache").items())
      EXPECT_EQ(json(md5_hex(file_bytes(temp / name))), md5) << name;
  }
}

TEST(GoldenMegatron, blends_json_datasets) {
  const json golden = megatron_json("blends.json");
  for (const json& c : golden.at("cases")) {
    SCOPED_TRACE(c.at("name"));
    const TempFolder temp;
    PretrainDataRequest request{.data = {.sources = sources_of(c.at("options"))},
                                .seq_length = golden.at("seq_length"),
                                .seed = golden.at("seed"),
                                .samples = sizes_of(c.at("sizes")),
                                .tokens = {.vocab_size = golden.at("vocab_size"),
                                           .eod_id = golden.at("eod"),
                                           .pad_id = golden.at("pad").get<int64_t>(),
                                           .identity = tokenizer_identity(golden)}};
    request.data.cache_folder = temp.path();
    const PretrainDatasets datasets = make_pretrain_datasets(request);
    const PretrainDataset* splits[] = {datasets.train.get(), datasets.valid.get(), datasets.test.get()};
    for (size_t i = 0; i < kSplits; ++i) {
      SCOPED_TRACE(kSplitNames[i]);
      const json& expected = c.at("splits")[i];
      ASSERT_EQ(splits[i] == nullptr, expected.is_null());
      if (expected.is_null()) continue;
      EXPECT_EQ(json(splits[i]->size()), expected.at("size"));
      for (const json& sample : expected.at("samples")) expect_sample(*splits[i], sample, false);
      const auto* blend = dynamic_cast<const BlendedDataset*>(splits[i]);
      ASSERT_EQ(blend != nullptr, expected.contains("dataset_index"));
      if (blend == nullptr) continue;
      EXPECT_EQ(array_json(blend->indices().datasets), expected.at("dataset_index"));
      EXPECT_EQ(array_json(blend->indices().samples), expected.at("dataset_sample_index"));
    }
    EXPECT_EQ(json(names_in(temp.path())), c.at("cache"));
  }
}

TEST(GoldenMegatron, blends_json_mock) {
  const json golden = megatron_json("blends.json");
  const json& mock = golden.at("mock");
  const std::vector<int32_t> lengths = numpy_mock_lengths(4096, 100'000);
  EXPECT_EQ(json(md5_hex(bytes_of(lengths))), mock.at("md5"));
  const MockSequences source(golden.at("vocab_size"), golden.at("eod"));
  std::vector<int64_t> tokens(mock.at("sequence").size());
  source.read(68, 0, tokens);
  EXPECT_EQ(json(tokens), mock.at("sequence"));
}

}  // namespace
}  // namespace megalith::data
