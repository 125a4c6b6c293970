// Strict JSON with typed access: every type, and errors that name the file, the field and the value.
#include "megalith/io/json_reader.h"

#include <nlohmann/json.hpp>

#include "tests/io/file_support.h"
#include "tests/support/expect.h"

namespace megalith::io {
namespace {

using testing::expect_contains;

JsonFields fields_of(const std::string& text) { return parse_json_file(text, "config.json").fields(); }

// Returns the error about `text` when it is read as T from "key".
template <typename T>
std::string complaint(const std::string& value) {
  return message_of<DataError>([&] { fields_of("{\"key\": " + value + "}").required<T>("key"); });
}

TEST(JsonReader, ReadsEveryType) {
  const JsonFields fields = fields_of(R"({"i": -3, "d": 1e-5, "whole": 4, "t": true, "s": "é\n", "li": [1, 2],
    "ld": [1, 0.5], "ls": ["a"], "empty": [], "o": {"factor": 8.0, "inner": {"x": 1}}, "n": null})");
  EXPECT_EQ(fields.required<int64_t>("i"), -3);
  EXPECT_EQ(fields.required<double>("d"), 1e-5);
  EXPECT_EQ(fields.required<double>("whole"), 4.0);
  EXPECT_EQ(fields.required<bool>("t"), true);
  EXPECT_EQ(fields.required<std::string>("s"), "é\n");
  EXPECT_EQ(fields.required<std::vector<int64_t>>("li"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(fields.required<std::vector<double>>("ld"), (std::vector<double>{1, 0.5}));
  EXPECT_EQ(fields.required<std::vector<std::string>>("ls"), (std::vector<std::string>{"a"}));
  EXPECT_TRUE(fields.required<std::vector<int64_t>>("empty").empty());
  EXPECT_EQ(fields.object("o").object("inner").required<int64_t>("x"), 1);
  EXPECT_EQ(fields.optional_object("o")->positive<double>("factor"), 8.0);
  EXPECT_EQ(fields.optional<int64_t>("n"), std::nullopt);
  EXPECT_EQ(fields.optional<int64_t>("absent"), std::nullopt);
  EXPECT_FALSE(fields.optional_object("n").has_value());
  EXPECT_EQ(fields.optional_positive<int64_t>("whole"), 4);
  EXPECT_FALSE(fields.has("n"));
  EXPECT_EQ(fields.value("absent"), nullptr);
  EXPECT_TRUE(fields.value("li")->is_array());
}

TEST(JsonReader, WrongTypesNameFileFieldAndValue) {
  EXPECT_EQ(complaint<int64_t>("\"32\""), "config.json: \"key\" is \"32\" (a string); it must be an integer");
  EXPECT_EQ(complaint<int64_t>("1.0"), "config.json: \"key\" is 1.0 (a number); it must be an integer");
  EXPECT_EQ(complaint<int64_t>("true"), "config.json: \"key\" is true (a boolean); it must be an integer");
  EXPECT_EQ(complaint<int64_t>("9223372036854775808"),
            "config.json: \"key\" is 9223372036854775808 (an integer); it must be an integer from -2^63 to 2^63-1");
  EXPECT_EQ(complaint<double>("[1]"), "config.json: \"key\" is [1] (a list); it must be a number");
  EXPECT_EQ(complaint<bool>("0"), "config.json: \"key\" is 0 (an integer); it must be true or false");
  EXPECT_EQ(complaint<std::string>("{\"a\":1}"), "config.json: \"key\" is {\"a\":1} (an object); it must be a string");
  EXPECT_EQ(complaint<std::vector<int64_t>>("[1,\"2\"]"),
            "config.json: \"key\" is [1,\"2\"] (a list); it must be a list of integers");
  EXPECT_EQ(complaint<std::string>("null"), "config.json: \"key\" is missing; it must be a string");
  EXPECT_EQ(message_of<DataError>([] { fields_of("{}").object("rope"); }),
            "config.json: \"rope\" is missing; it must be an object");
  EXPECT_EQ(message_of<DataError>(
                [] { fields_of(R"({"rope": {"factor": "8"}})").object("rope").required<double>("factor"); }),
            "config.json: \"rope.factor\" is \"8\" (a string); it must be a number");
}

TEST(JsonReader, RangesAndOwnRequirements) {
  const JsonFields fields = fields_of(R"({"hidden_size": 0, "eps": -1.5, "heads": 7})");
  EXPECT_EQ(message_of<DataError>([&] { fields.positive<int64_t>("hidden_size"); }),
            "config.json: \"hidden_size\" is 0 (an integer); it must be an integer greater than 0");
  expect_contains(message_of<DataError>([&] { fields.optional_positive<double>("eps"); }), "greater than 0");
  EXPECT_EQ(message_of<DataError>([&] { fields.refuse("heads", "divide hidden_size"); }),
            "config.json: \"heads\" is 7 (an integer); it must divide hidden_size");
}

TEST(JsonReader, KnowsWhatNobodyAskedFor) {
  const JsonFile file = parse_json_file(R"({"z": 1, "a": {"b": 1, "c": 2}, "a.b": 3, "y": null})", "config.json");
  const JsonFields fields = file.fields();
  fields.object("a").optional<int64_t>("b");
  fields.optional<int64_t>("y");
  EXPECT_EQ(fields.unread(), (std::vector<std::string>{"z", "a.b"}));
  EXPECT_EQ(file.fields().object("a").unread(), (std::vector<std::string>{"c"}));
}

TEST(JsonReader, KeepsTheOrderOfKeys) {
  const std::string text = R"({"z":1,"a":{"y":[],"b":0.1},"m":"é"})";
  EXPECT_EQ(parse_json(text, "f").dump(), text);
}

// Refused with the file's name, and with what is wrong.
void expect_refused(const std::string& text, const std::string& reason) {
  const std::string message = message_of<DataError>([&] { parse_json_file(text, "dir/config.json").fields(); });
  EXPECT_EQ(message.rfind("dir/config.json: ", 0), 0U) << message;
  expect_contains(message, reason);
}

TEST(JsonReader, RefusesWhatIsNotStrictJson) {
  expect_refused("", "not valid JSON");
  expect_refused("{\"a\": 1", "line 1, column 8");
  expect_refused("{\"a\": 1,}", "not valid JSON");
  expect_refused("{\"a\": NaN}", "not valid JSON");
  expect_refused("{\"a\": 1} x", "not valid JSON");
  expect_refused("{\"a\": 1e400}", "1e400");
  expect_refused("{\"a\": 1} // comment", "not valid JSON");
  expect_refused("{\"a\": \"\\ud800\"}", "not valid JSON");
  expect_refused("[1, 2]", "[1,2] (a list); it must be an object");
  expect_refused("\xEF\xBB\xBF{}", "byte order mark");
  expect_refused(std::string("{}\0 junk", 8), "byte 2 (0x00) is not valid UTF-8");
}

TEST(JsonReader, RefusesDuplicateKeys) {
  expect_refused(R"({"hidden_size": 1, "x": 2, "hidden_size": 3})", "\"hidden_size\" appears twice");
  expect_refused(R"({"a": {"b": [1, {"c": 0, "c": 0}]}})", "\"a.b.c\" appears twice");
  EXPECT_NO_THROW(parse_json(R"({"a": {"x": 1}, "b": {"x": 1}, "x": 1})", "f"));
}

TEST(JsonReader, RefusesEveryFormOfBadUtf8) {
  for (const char* bytes : {"\xff", "\x80", "\xc3", "\xc0\x80", "\xe2\x82", "\xe0\x80\x80", "\xed\xa0\x80",
                            "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80"})
    expect_refused(std::string("{\"a\": \"") + bytes + "\"}", "byte 7");
  for (const char* bytes :
       {"\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_NO_THROW(parse_json(std::string("\"") + bytes + "\"", "f")) << bytes;
}

TEST(JsonReader, DepthIsLimited) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(kMaxJsonDepth), "f"));
  expect_refused(nested(kMaxJsonDepth + 1), "more than 64");
  expect_refused(std::string(1 << 20, '['), "more than 64");
}

TEST(JsonReader, LongAndOddTextIsShownShort) {
  const std::string message = complaint<int64_t>("\"" + std::string(5000, 'x') + "\"");
  EXPECT_LT(message.size(), 300U);
  expect_contains(message, "x…\" (a string)");
  EXPECT_EQ(in_quotes("a\nb\""), "\"a\\nb\\\"\"");
  // Cut between characters, never inside one.
  std::string wide;
  for (int i = 0; i < 100; ++i) wide += "é";
  const std::string cut = in_quotes("x" + wide);
  EXPECT_EQ(cut.find("\xEF\xBF\xBD"), std::string::npos) << cut;
}

TEST(JsonReader, FilesAreNamedByTheirPath) {
  const TempFolder folder;
  const auto path = put_file(folder / "config.json", R"({"hidden_size": 64})");
  EXPECT_EQ(read_json_file(path).fields().positive<int64_t>("hidden_size"), 64);
  expect_contains(message_of<DataError>([&] { read_json_file(folder / "absent.json"); }),
                  (folder / "absent.json").string());
  put_file(path, "{\"hidden_size\": \"64\"}");
  expect_contains(message_of<DataError>([&] { read_json_file(path).fields().required<int64_t>("hidden_size"); }),
                  path.string());
}

// The index of a large model: as many keys as tensors.
TEST(JsonReader, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i)
    text += fmt::format("\"model.layers.{}.weight\": \"model-{:05}.safetensors\",", i, i % 100);
  text.back() = '}';
  EXPECT_EQ(parse_json(text, "f").size(), 200'000U);
}

}  // namespace
}  // namespace megalith::io
