#include "megalith/data/sft/convert_record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/data/sft/conversation.h"
#include "tests/support/expect.h"

namespace megalith::data {
namespace {

using testing::error_of;
using testing::expect_contains;

ConvertedRecord convert(const std::string& entry, const std::string& record,
                        SampleKind kind = SampleKind::kConversation) {
  DatasetDescription dataset = read_dataset_entry(io::parse_json(entry, "entry"), "entry");
  dataset.name = "mine";
  return convert_record(io::parse_json(record, "record"), dataset, kind, "d.jsonl:7");
}

ConvertedRecord convert_inferred(const std::string& record, SampleKind kind = SampleKind::kConversation) {
  const io::Json parsed = io::parse_json(record, "record");
  return convert_record(parsed, infer_format(parsed, "d.jsonl:7"), kind, "d.jsonl:7");
}

const std::vector<Message> kHi = {{Role::kUser, "hi"}};

TEST(ConvertRecord, alpaca_joins_prompt_and_query) {
  const auto both = convert("{}", R"({"instruction": "a", "input": "b", "output": "c"})").conversation;
  ASSERT_TRUE(both);
  EXPECT_EQ(both->prompt, (std::vector<Message>{{Role::kUser, "a\nb"}}));
  EXPECT_EQ(both->responses, (std::vector<Message>{{Role::kAssistant, "c"}}));
  EXPECT_FALSE(convert("{}", R"({"instruction": "a"})").conversation);
  EXPECT_TRUE(convert("{}", R"({"instruction": "a"})", SampleKind::kDocument).conversation);
}

TEST(ConvertRecord, history_becomes_turns) {
  const auto result = convert(R"({"columns": {"prompt": "q", "response": "a", "history": "h"}})",
                              R"({"q": "3", "a": "4", "h": [["1", "2"]]})")
                          .conversation;
  ASSERT_TRUE(result);
  EXPECT_EQ(result->prompt.size(), 3U);
  expect_contains(error_of<DataError>([] {
                    convert(R"({"columns": {"prompt": "q", "history": "h"}})", R"({"q": "3", "h": [["1"]]})");
                  }),
                  "d.jsonl:7: column \"h\" has [\"1\"]");
}

TEST(ConvertRecord, missing_columns_are_named) {
  const std::string error = error_of<DataError>([] { convert("{}", R"({"question": "a", "answer": "c"})"); });
  expect_contains(error, "d.jsonl:7: column \"instruction\" is missing (the record has question and answer)");
  expect_contains(error, "dataset mine");
  expect_contains(error_of<DataError>([] { convert(R"({"formatting": "sharegpt"})", R"({"x": 1})"); }),
                  "column \"conversations\" is missing");
  expect_contains(error_of<DataError>([] { convert("{}", R"({"instruction": 5, "output": "c"})"); }),
                  "column \"instruction\" is 5 (an integer); it must be a text");
}

TEST(ConvertRecord, sharegpt_leaves_out_what_does_not_alternate) {
  const auto problem = [](const std::string& turns) {
    return convert(R"({"formatting": "sharegpt"})", "{\"conversations\": " + turns + "}").problem;
  };
  expect_contains(problem(R"([{"from": "gpt", "value": "a"}, {"from": "human", "value": "b"}])"), "turn 1 should be");
  expect_contains(problem(R"([{"from": "human", "value": "a"}])"), "1 turns");
  expect_contains(problem("[]"), "0 turns");
  expect_contains(problem(R"([{"from": "alien", "value": "a"}, {"from": "gpt", "value": "a"}])"), "\"alien\"");
  expect_contains(error_of<DataError>([&] { problem(R"([{"role": "user", "content": "a"}])"); }),
                  "\"from\" and \"value\"");
}

TEST(ConvertRecord, a_leading_system_turn_wins_over_the_column) {
  const auto result = convert(R"({"formatting": "sharegpt", "columns": {"messages": "m", "system": "s"}})",
                              R"({"s": "column", "m": [{"from": "system", "value": "turn"},
                                  {"from": "human", "value": "hi"}, {"from": "gpt", "value": "a"}]})")
                          .conversation;
  ASSERT_TRUE(result);
  EXPECT_EQ(result->system, "turn");
  EXPECT_EQ(result->prompt, kHi);
}

TEST(ConvertRecord, openai_tool_calls_and_results) {
  const auto result = convert_inferred(R"({"messages": [{"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "content": "r1"}, {"role": "tool", "content": "r2"}, {"role": "assistant", "content": "done"}],
        "tools": [{"name": "f"}]})")
                          .conversation;
  ASSERT_TRUE(result);
  ASSERT_EQ(result->prompt.size(), 3U);
  EXPECT_EQ(result->prompt[1], (Message{Role::kFunction, R"([{"name": "f", "arguments": {"x": 1}}])"}));
  EXPECT_EQ(result->prompt[2], (Message{Role::kObservation, "r1\n</tool_response>\n<tool_response>\nr2"}));
  EXPECT_EQ(result->tools, R"([{"name": "f"}])");
}

TEST(ConvertRecord, openai_by_name_has_the_system_texts_of_the_reference) {
  const auto system = [](const std::string& more) {
    const std::string turns = R"({"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"})";
    const auto result =
        convert(R"({"formatting": "openai", "columns": {"messages": "m", "system": "s", "tools": "t"}})",
                "{\"m\": [" + turns + "]" + more + "}");
    return result.conversation.value().system;
  };
  EXPECT_EQ(system(""), "detailed thinking off");
  EXPECT_EQ(system(R"(, "s": "S")"), "S\ndetailed thinking off");
  EXPECT_EQ(system(R"(, "s": "detailed thinking on")"), "detailed thinking on");
  EXPECT_EQ(system(R"(, "t": [{}])"), "");
  EXPECT_EQ(system(R"(, "s": "S", "t": [{}])"), "S\n");
}

TEST(ConvertRecord, results_that_nobody_answers_are_left_out) {
  const auto result = convert_inferred(R"({"messages": [{"role": "user", "content": "hi"},
        {"role": "assistant", "content": "a"}, {"role": "tool", "content": "r"}]})")
                          .conversation;
  ASSERT_TRUE(result);
  EXPECT_EQ(result->responses.front().content, "a");
}

TEST(ConvertRecord, pairs_in_all_their_forms) {
  const std::string user = R"({"role": "user", "content": "hi"})";
  const std::string good = R"({"role": "assistant", "content": "good"})";
  const std::string bad = R"({"role": "assistant", "content": "bad"})";
  for (const std::string& record :
       {std::string(R"({"prompt": "hi", "chosen": "good", "rejected": "bad"})"),
        R"({"prompt": [)" + user + R"(], "chosen": [)" + good + R"(], "rejected": [)" + bad + "]}",
        R"({"chosen": [)" + user + "," + good + R"(], "rejected": [)" + user + "," + bad + "]}",
        R"({"messages": [)" + user + R"(], "chosen": )" + good + R"(, "rejected": )" + bad + "}"}) {
    SCOPED_TRACE(record);
    const auto result = convert_inferred(record, SampleKind::kPreference).conversation;
    ASSERT_TRUE(result);
    EXPECT_EQ(result->prompt, kHi);
    EXPECT_EQ(result->responses, (std::vector<Message>{{Role::kAssistant, "good"}, {Role::kAssistant, "bad"}}));
  }
}

TEST(ConvertRecord, pretokenized_rows_are_checked) {
  const auto sample = [](const std::string& record, SampleKind kind = SampleKind::kConversation) {
    return pretokenized_sample(io::parse_json(record, "r"), kind, "d.jsonl:7");
  };
  EXPECT_EQ(sample(R"({"input_ids": [1, 2], "labels": [-100, 2]})").row.labels, (std::vector<int32_t>{-100, 2}));
  EXPECT_EQ(sample(R"({"input_ids": [1, 2]})").row.labels, (std::vector<int32_t>{1, 2}));
  expect_contains(error_of<DataError>([&] { sample(R"({"input_ids": [1, 2], "labels": [2]})"); }),
                  "has 2 values and \"labels\" 1");
  expect_contains(error_of<DataError>([&] { sample(R"({"input_ids": [1, 2.5]})"); }),
                  "\"input_ids\" has 2.5 (a number) at position 1");
  expect_contains(error_of<DataError>([&] { sample(R"({"input_ids": [1]})", SampleKind::kPreference); }),
                  "\"chosen_input_ids\"");
}

}  // namespace
}  // namespace megalith::data
