// Whatever bytes a data file holds, they give records or an error that the user can act on.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/data/random.h"
#include "megalith/data/sft/convert_record.h"
#include "megalith/data/sft/record_set.h"
#include "tests/support/temp_folder.h"

namespace megalith::data {
namespace {

const std::vector<std::string> kSeeds = {
    R"([{"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]]}, {"instruction": "a"}])",
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"x\"}, {\"from\": \"gpt\", \"value\": \"\\u00e9\"}]}\n"
    "{\"conversations\": []}\n",
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
 {"role": "tool", "content": "r"}], "tools": [{"name": "f"}]})",
    R"({"prompt": "q", "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"})",
    "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}\n{\"input_ids\": [18446744073709551615]}\n",
};

void change(std::string& text, RandomStream& random) {
  constexpr std::string_view kOdd("\0\xff\"{}[],:-9\\\n\xc3n", 15);
  const size_t at = random.below(text.size() + 1);
  switch (random.below(3)) {
    case 0:
      text.insert(at, 1, kOdd[random.below(kOdd.size())]);
      break;
    case 1:
      text.erase(at, random.below(12));
      break;
    default:
      text.insert(at, text.substr(random.below(text.size() + 1), random.below(40)));
  }
}

void read_everything(const std::filesystem::path& path) {
  const RecordSet records(find_datasets({path.string()}, "."));
  const DatasetDescription& dataset = records.datasets().front();
  for (int64_t i = 0; i < records.size(0); ++i) {
    const RecordRef ref{0, i};
    for (const SampleKind kind :
         {SampleKind::kDocument, SampleKind::kConversation, SampleKind::kPreference, SampleKind::kFeedback}) {
      try {
        if (dataset.formatting == Formatting::kPretokenized)
          pretokenized_sample(records.record(ref), kind, records.place(ref));
        else
          convert_record(records.record(ref), dataset, kind, records.place(ref));
      } catch (const DataError& error) {
        ASSERT_NE(std::string(error.what()).find(records.place(ref)), std::string::npos) << error.what();
      }
    }
  }
}

TEST(RandomInput, gives_records_or_an_error_that_names_the_place) {
  const testing::TempFolder folder;
  RandomStream random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text = kSeeds[random.below(kSeeds.size())];
    for (uint64_t left = random.below(5); left > 0; --left) change(text, random);
    std::ofstream(folder / "d.jsonl", std::ios::binary) << text;
    try {
      read_everything(folder / "d.jsonl");
    } catch (const InternalError& error) {
      FAIL() << error.what() << "\n" << text;
    } catch (const Error&) {
      continue;
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << text;
    }
    if (HasFatalFailure()) FAIL() << text;
  }
}

}  // namespace
}  // namespace megalith::data
