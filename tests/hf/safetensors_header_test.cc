// The JSON header of a safetensors file, as text: what it gives, and the message for every way in which it can be
// wrong.
#include "megalith/hf/safetensors_header.h"

#include <ctime>

#include "tests/hf/file_support.h"
#include "tests/support/expect.h"

namespace megalith::hf {
namespace {

using testing::expect_contains;

SafetensorsHeader parse(const std::string& json, uint64_t data_bytes) {
  return parse_safetensors_header(json, data_bytes, "dir/model.safetensors");
}

// Refused with the file's name, and with everything in `parts`.
void expect_refused(const std::string& json, uint64_t data_bytes, const std::vector<std::string>& parts) {
  const std::string message = message_of<DataError>([&] { parse(json, data_bytes); });
  EXPECT_EQ(message.rfind("dir/model.safetensors: ", 0), 0U) << message;
  for (const std::string& part : parts) expect_contains(message, part);
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype, shape, offsets);
}

TEST(SafetensorsHeader, ReadsNamesDtypesShapesAndMetadata) {
  const auto header = parse("{" + entry("b", "BF16", "2,3", "8,20") + "," + entry("a", "F64", "", "0,8") + "," +
                                entry("none", "I64", "5,0", "8,8") + R"(,"__metadata__":{"format":"pt"}}      )",
                            20);
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_TRUE(header.tensors[0].shape.empty());
  EXPECT_EQ(header.tensors[1].name, "none");
  EXPECT_EQ(header.tensors[1].bytes(), 0U);
  EXPECT_EQ(header.tensors[2].name, "b");
  EXPECT_EQ(header.tensors[2].dtype, Dtype::kBF16);
  EXPECT_EQ(header.tensors[2].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[2].begin, 8U);
  EXPECT_EQ(header.tensors[2].end, 20U);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_TRUE(parse("{}", 0).tensors.empty());
}

TEST(SafetensorsHeader, KnowsEveryDtype) {
  const std::vector<std::pair<std::string, int>> sizes = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},  {"I32", 4},     {"I16", 2},     {"I8", 1},
      {"U8", 1},  {"U16", 2}, {"U32", 4}, {"U64", 8},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [dtype, bytes] : sizes) {
    const auto header =
        parse("{" + entry("a", dtype, "3", fmt::format("0,{}", 3 * bytes)) + "}", 3 * static_cast<uint64_t>(bytes));
    EXPECT_EQ(name(header.tensors.at(0).dtype), dtype);
  }
}

TEST(SafetensorsHeader, NamesUnsupportedDtypesWithTheirTensors) {
  expect_refused("{" + entry("q.weight", "F4", "4", "0,2") + "," + entry("ok", "U8", "1", "2,3") + "," +
                     entry("z.weight", "C64", "1", "3,11") + "}",
                 11, {"tensor \"q.weight\": dtype is \"F4\"", "tensor \"z.weight\": dtype is \"C64\"", "F8_E4M3"});
}

TEST(SafetensorsHeader, RefusesOverlapsAndHoles) {
  expect_refused("{" + entry("a", "U8", "8", "0,8") + "," + entry("b", "U8", "8", "4,12") + "}", 12,
                 {"tensor \"b\": data_offsets [4, 12] overlap those of \"a\", [0, 8]"});
  // One inside the other, and one after both.
  expect_refused("{" + entry("a", "U8", "8", "0,8") + "," + entry("b", "U8", "2", "2,4") + "," +
                     entry("c", "U8", "2", "8,10") + "}",
                 10, {"tensor \"b\": data_offsets [2, 4] overlap those of \"a\""});
  expect_refused("{" + entry("a", "U8", "8", "0,8") + "," + entry("b", "U8", "8", "0,8") + "}", 8,
                 {"\"a\"", "\"b\"", "overlap"});
  expect_refused("{" + entry("a", "U8", "4", "0,4") + "," + entry("b", "U8", "4", "6,10") + "}", 10,
                 {"tensor \"b\"", "[4, 6]", "no tensor"});
  expect_refused("{" + entry("a", "U8", "4", "2,6") + "}", 6, {"tensor \"a\"", "[0, 2]"});
}

TEST(SafetensorsHeader, ToldFromPromisedSizes) {
  expect_refused("{" + entry("a", "U8", "9", "0,9") + "}", 4,
                 {"tensor \"a\"", "only 4", "cut short", "download it again"});
  expect_refused("{" + entry("a", "U8", "4", "0,4") + "}", 9, {"5 bytes follow the last tensor", "download it again"});
  expect_refused("{}", 1, {"1 bytes follow"});
}

TEST(SafetensorsHeader, ShapesMustFitTheirBytes) {
  expect_refused("{" + entry("a", "F32", "2,3", "0,20") + "}", 20,
                 {"tensor \"a\": shape [2,3] of F32 needs 24 bytes, but data_offsets [0, 20] hold 20"});
  expect_refused("{" + entry("a", "F32", "4294967296,4294967296", "0,8") + "}", 8,
                 {"tensor \"a\"", "larger than any file"});
  expect_refused("{" + entry("a", "F32", "4611686018427387904", "0,0") + "}", 0,
                 {"tensor \"a\"", "larger than any file"});
  // A product of 0 does not hide the sizes beside it.
  expect_refused("{" + entry("a", "U8", "0,4611686018427387904,8", "0,0") + "}", 0, {"larger than any file"});
  expect_refused("{" + entry("a", "U8", "18446744073709551615", "0,8") + "}", 8, {"tensor \"a\": shape is"});
  expect_refused("{" + entry("a", "U8", "-1", "0,8") + "}", 8, {"shape is [-1]", "from 0 to"});
  expect_refused("{" + entry("a", "U8", "2.0", "0,2") + "}", 2, {"shape is [2.0]"});
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  expect_refused("{" + entry("a", "U8", many, "0,1") + "}", 1, {"at most 64 sizes"});
}

TEST(SafetensorsHeader, WrongTypesNameTensorAndField) {
  expect_refused(R"({"a":[1]})", 0, {"tensor \"a\": its entry is [1] (a list)"});
  expect_refused(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, {"tensor \"a\": dtype is missing"});
  expect_refused(R"({"a":{}})", 1, {"dtype is missing", "shape is missing", "data_offsets is missing"});
  expect_refused(R"({"a":{"dtype":3,"shape":"x","data_offsets":{"b":1}}})", 1,
                 {"dtype is 3 (an integer)", "shape is \"x\" (a string)", "data_offsets is {\"b\":1} (an object)"});
  for (const char* offsets : {"0", "0,1,2", "-1,3", "3,1", "0,1.5", "0,18446744073709551615"})
    expect_refused("{" + entry("a", "U8", "1", offsets) + "}", 1, {"tensor \"a\": data_offsets is ["});
  expect_refused(R"({"__metadata__":"pt"})", 0, {"__metadata__ is \"pt\" (a string)"});
  expect_refused(R"({"__metadata__":{"format":1}})", 0, {"__metadata__: \"format\" is 1 (an integer)"});
}

TEST(SafetensorsHeader, RefusesWhatIsNotAHeader) {
  expect_refused("", 0, {"does not begin with '{'"});
  expect_refused("[]", 0, {"does not begin with '{'"});
  expect_refused(" {}", 0, {"does not begin with '{'"});
  expect_refused(R"({"a":)", 0, {"header: not valid JSON"});
  expect_refused("{\"\xff\":1}", 0, {"header: byte 2 (0xff) is not valid UTF-8"});
  expect_refused(std::string("{}\0\0", 4), 0, {"byte 2 (0x00)"});
  expect_refused("{" + entry("a", "U8", "1", "0,1") + "," + entry("a", "U8", "1", "1,2") + "}", 2,
                 {"\"a\" appears twice"});
  expect_refused(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1,
                 {"\"a.dtype\" appears twice"});
  expect_refused("{" + std::string(kMaxSafetensorsHeaderBytes, ' ') + "}", 0, {"at most 100000000"});
}

TEST(SafetensorsHeader, ListsEveryTensorUpToALimit) {
  std::string json = "{";
  for (int i = 0; i < 30; ++i) json += (i > 0 ? "," : "") + entry(fmt::format("t{:02}", i), "F9", "1", "0,1");
  const std::string message = message_of<DataError>([&] { parse(json + "}", 1); });
  expect_contains(message, "\"t00\"");
  expect_contains(message, "\"t19\"");
  EXPECT_EQ(message.find("\"t20\""), std::string::npos);
  expect_contains(message, "30 problems in all");
}

// 100 000 tensors: a header of 8 MB.
TEST(SafetensorsHeader, LargeHeadersTakeLinearTime) {
  std::string json = "{";
  for (int i = 0; i < 100'000; ++i)
    json += (i > 0 ? "," : "") +
            entry(fmt::format("model.layers.{}.mlp.weight", i), "BF16", "2,2", fmt::format("{},{}", 8 * i, 8 * i + 8));
  const std::clock_t start = std::clock();  // time of this process: other work on the machine does not count
  EXPECT_EQ(parse(json + "}", 800'000).tensors.size(), 100'000U);
  // A fifth of a second; quadratic would take minutes.
  EXPECT_LT(std::clock() - start, 30 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace megalith::hf
