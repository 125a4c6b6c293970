// The files of a model's folder as one list of tensors: a single file, shards with and without an index, and folders
// whose parts do not agree.
#include "megalith/hf/weight_files.h"

#include <ATen/ATen.h>

#include <thread>

#include "tests/hf/file_support.h"
#include "tests/support/expect.h"

namespace megalith::hf {
namespace {

using testing::expect_contains;

// A file with the given tensors, each of one byte: 0, 1, 2, …
void put_shard(const std::filesystem::path& path, const std::vector<std::string>& names) {
  std::string header = "{", data;
  for (size_t i = 0; i < names.size(); ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})", i > 0 ? "," : "", names[i],
                          i, i + 1);
    data.push_back(static_cast<char>(i));
  }
  put_file(path, safetensors_bytes(header + "}", data));
}

void put_index(const TempFolder& folder, const std::string& weight_map) {
  put_file(folder / "model.safetensors.index.json", R"({"metadata":{"total_size":1},"weight_map":)" + weight_map + "}");
}

std::string refusal(const TempFolder& folder) {
  const std::string message = message_of<DataError>([&] { const WeightFiles files(folder.path()); });
  expect_contains(message, folder.path().string());
  return message;
}

TEST(WeightFiles, OneFile) {
  const TempFolder folder;
  put_shard(folder / "model.safetensors", {"b", "a"});
  put_shard(folder / "other.safetensors", {"a"});  // not looked at
  const WeightFiles files(folder.path());
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(files.tensor("a").item<int>(), 1);
  EXPECT_EQ(files.find("c"), nullptr);
  EXPECT_FALSE(files.contains("c"));
  EXPECT_EQ(files.total_bytes(), 2U);
  EXPECT_EQ(files.file_of("a"), folder / "model.safetensors");
  files.release("a");
  expect_contains(message_of<DataError>([&] { files.tensor("c"); }), "\"c\"");
}

TEST(WeightFiles, ShardsOfAnIndexAreOpenedWhenTheyAreNeeded) {
  const TempFolder folder;
  put_shard(folder / "model-00001-of-00002.safetensors", {"a", "b", "extra"});
  put_file(folder / "model-00002-of-00002.safetensors", "broken");
  put_index(folder, R"({"a":"model-00001-of-00002.safetensors","b":"model-00001-of-00002.safetensors",
                       "c":"model-00002-of-00002.safetensors"})");
  const WeightFiles files(folder.path());
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(files.tensor("b").item<int>(), 1);
  EXPECT_EQ(files.find("a")->shape, (std::vector<int64_t>{1}));
  expect_contains(message_of<DataError>([&] { files.find("c"); }), "model-00002-of-00002.safetensors");
  expect_contains(message_of<DataError>([&] { files.total_bytes(); }), "model-00002-of-00002.safetensors");
  put_shard(folder / "model-00002-of-00002.safetensors", {"c"});
  EXPECT_EQ(files.tensor("c").item<int>(), 0);
  EXPECT_EQ(files.total_bytes(), 3U);
}

TEST(WeightFiles, EveryMissingShardIsNamed) {
  const TempFolder folder;
  put_shard(folder / "two.safetensors", {"b"});
  std::filesystem::create_symlink(folder / "nowhere", folder / "three.safetensors");
  put_index(folder, R"({"a":"one.safetensors","b":"two.safetensors","c":"three.safetensors"})");
  const std::string message = refusal(folder);
  expect_contains(message, "one.safetensors and three.safetensors");
  EXPECT_EQ(message.find("two.safetensors"), std::string::npos);
}

TEST(WeightFiles, AShardThatLacksWhatTheIndexPromises) {
  const TempFolder folder;
  put_shard(folder / "one.safetensors", {"a"});
  put_index(folder, R"({"a":"one.safetensors","x":"one.safetensors","y":"one.safetensors"})");
  const WeightFiles files(folder.path());
  const std::string message = message_of<DataError>([&] { files.tensor("a"); });
  expect_contains(message, "one.safetensors lacks 2 tensors");
  expect_contains(message, "\"x\" and \"y\"");
}

TEST(WeightFiles, AnIndexStaysInsideItsFolder) {
  for (const char* shard : {"../x.safetensors", "/etc/passwd", "sub/../../x.safetensors", ""}) {
    const TempFolder folder;
    put_index(folder, fmt::format(R"({{"a":"{}"}})", shard));
    const std::string message = refusal(folder);
    expect_contains(message, "\"a\"");
    expect_contains(message, "in the same folder");
  }
}

TEST(WeightFiles, ABrokenIndexIsNamed) {
  const TempFolder folder;
  put_index(folder, R"({"a":3})");
  expect_contains(refusal(folder), "\"a\" is 3 (an integer)");
  put_index(folder, R"("x")");
  expect_contains(refusal(folder), "\"weight_map\" is \"x\" (a string)");
  put_index(folder, "{}");
  expect_contains(refusal(folder), "weight_map is empty");
  put_index(folder, R"({"a":"one.safetensors","a":"two.safetensors"})");
  expect_contains(refusal(folder), "\"weight_map.a\" appears twice");
  put_file(folder / "model.safetensors.index.json", "{");
  expect_contains(refusal(folder), "model.safetensors.index.json: not valid JSON");
}

TEST(WeightFiles, ShardsWithoutAnIndex) {
  const TempFolder folder;
  put_shard(folder / "model-00001.safetensors", {"a"});
  put_shard(folder / "model-00002.safetensors", {"b"});
  put_shard(folder / "adapter_model.safetensors", {"a"});
  const WeightFiles files(folder.path());
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(files.file_of("b"), folder / "model-00002.safetensors");
}

TEST(WeightFiles, OtherNamesServeWhenThereIsNoModelFile) {
  const TempFolder folder;
  put_shard(folder / "consolidated.safetensors", {"a"});
  EXPECT_EQ(WeightFiles(folder.path()).names(), (std::vector<std::string>{"a"}));
}

TEST(WeightFiles, NumberedShardsWithoutAnIndexMustBeComplete) {
  const TempFolder folder;
  put_shard(folder / "model-00002-of-00004.safetensors", {"a"});
  put_shard(folder / "model-00003-of-00004.safetensors", {"b"});
  const std::string message = refusal(folder);
  expect_contains(message, "model-00001-of-00004.safetensors and model-00004-of-00004.safetensors");
}

TEST(WeightFiles, ATensorInTwoFiles) {
  const TempFolder folder;
  put_shard(folder / "model-1.safetensors", {"a", "b"});
  put_shard(folder / "model-2.safetensors", {"b", "c"});
  expect_contains(refusal(folder), "\"b\" in model-1.safetensors and model-2.safetensors");
}

TEST(WeightFiles, PickleFilesAreRefusedWithTheWayToConvertThem) {
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "consolidated.00.pth"}) {
    const TempFolder folder;
    put_file(folder / name, "PK");
    put_file(folder / "config.json", "{}");
    const std::string message = refusal(folder);
    expect_contains(message, name);
    expect_contains(message, fmt::format("M.from_pretrained(\"{}\"", folder.path().string()));
    expect_contains(message, "save_pretrained(");
    expect_contains(message, "safe_serialization=True");
  }
}

TEST(WeightFiles, AFolderWithoutWeightsSaysWhatItHolds) {
  const TempFolder folder;
  put_file(folder / "config.json", "{}");
  expect_contains(refusal(folder), "It holds: config.json");
  expect_contains(message_of<DataError>([&] { const WeightFiles files(folder / "absent"); }), "is not a folder");
}

TEST(WeightFiles, ManyThreadsOpenTheSameShards) {
  const TempFolder folder;
  std::string map = "{";
  for (int i = 0; i < 8; ++i) {
    put_shard(folder / fmt::format("s{}", i), {fmt::format("t{}", i)});
    map += fmt::format("{}\"t{}\":\"s{}\"", i > 0 ? "," : "", i, i);
  }
  put_index(folder, map + "}");
  const WeightFiles files(folder.path());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (const std::string& name : files.names()) EXPECT_EQ(files.tensor(name).item<int>(), 0);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace megalith::hf
