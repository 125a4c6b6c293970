#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "megalith/base/text.h"
#include "tests/cli/preview_support.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::cli {
namespace {

using layout::golden_inputs;
using layout::golden_list;
using nlohmann::json;
using nlohmann::ordered_json;

json groups_file() { return testing::golden_json("parallel/groups.json"); }

// The words that ask for a golden configuration; what is absent there is left out here.
std::vector<std::string> group_words(const json& c) {
  std::vector<std::string> words{"groups", "--json", "--world-size", c.at("world").dump()};
  for (const char* size : {"tp", "pp", "cp", "ep", "etp", "vpp"})
    if (c.contains(size) && !c.at(size).is_null())
      words.insert(words.end(), {"--" + std::string(size), c.at(size).dump()});
  if (c.contains("order")) words.insert(words.end(), {"--order", c.at("order").get<std::string>()});
  if (c.contains("instances"))
    words.insert(words.end(), {"--num_distributed_optimizer_instances", c.at("instances").dump()});
  if (!c.contains("hcp")) return words;
  words.emplace_back("--hierarchical-context-parallel-sizes");
  for (const json& size : c.at("hcp")) words.push_back(size.dump());
  return words;
}

std::string joined(const json& groups) {
  std::string text;
  for (const json& group : groups) {
    if (!text.empty()) text += ';';
    for (size_t i = 0; i < group.size(); ++i) text += (i == 0 ? "" : ",") + group[i].dump();
  }
  return text;
}

std::vector<std::string> keys(const ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

TEST(GoldenPreviewGroups, groups_json_cases) {
  for (const json& c : golden_list(groups_file(), "cases")) {
    SCOPED_TRACE(golden_inputs(c));
    const Answer answer = preview(group_words(c));
    ASSERT_EQ(answer.exit_code, kDone) << answer.error;
    const json shown = answer.json();
    EXPECT_EQ(shown.at("world_size"), c.at("world"));
    for (const char* size : {"tp", "pp", "cp", "ep", "etp", "dp", "edp", "order", "vpp", "instances", "hcp"})
      if (c.contains(size)) {
        EXPECT_EQ(shown.at(size), c.at(size)) << size;
      }
    if (c.contains("groups")) {
      EXPECT_EQ(shown.at("groups"), c.at("groups"));
    }
    const json hashed = c.value("hashed", json::object());
    for (const auto& [kind, golden] : hashed.items())
      EXPECT_EQ(fmt::format("{:016x}", fnv1a64(joined(shown.at("groups").at(kind)))),
                golden.at("fnv1a64").get<std::string>())
          << kind;
  }
}

TEST(GoldenPreviewGroups, groups_json_creation_order) {
  const ordered_json shown =
      ordered_json::parse(preview("groups --world-size 16 --num_distributed_optimizer_instances 2 --json").out);
  EXPECT_EQ(keys(shown.at("groups")), groups_file().at("creation_order").get<std::vector<std::string>>());
}

TEST(GoldenPreviewGroups, groups_json_invalid) {
  for (const json& c : golden_list(groups_file(), "invalid")) {
    if (c.value("vpp", json()) == 1) continue;  // no virtual stages for every command (design.md §5)
    SCOPED_TRACE(golden_inputs(c));
    const Answer answer = preview(group_words(c));
    EXPECT_FALSE(answer.error.empty()) << answer.out;
    EXPECT_EQ(answer.out, "");
  }
}

TEST(PreviewGroups, long_names_and_mapping_option_say_the_same) {
  const std::string sizes = " --tensor_model_parallel_size 2 pipeline_model_parallel_size=2 --json";
  EXPECT_EQ(preview("groups --world-size 8 --order tp-cp-ep-pp-dp --tp 2 --pp 2 --json").out,
            preview("groups world_size=8 --use-tp-pp-dp-mapping" + sizes).out);
}

TEST(PreviewGroups, shows_both_data_parallel_sizes_and_explains_them_with_experts) {
  const std::string out = preview("groups --world-size 8 --tp 2 --ep 4 --etp 1").out;
  EXPECT_TRUE(contains(out, "DP  = 8/(2*1*1) = 4")) << out;
  EXPECT_TRUE(contains(out, "EDP = 8/(1*4*1) = 2")) << out;
  EXPECT_TRUE(contains(out, "Why not N = TP*PP*CP*EP*DP?")) << out;
  EXPECT_TRUE(contains(out, "1*4*2 = 2*1*4 = 8 ranks")) << out;
  EXPECT_TRUE(contains(out, "8/(2*1*1*4) = 1, which is not DP = 4.")) << out;
}

TEST(PreviewGroups, explains_nothing_without_experts) {
  const std::string out = preview("groups --world-size 16 --tp 4 --pp 2").out;
  EXPECT_TRUE(contains(out, "[0-3] [4-7] [8-11] [12-15]")) << out;
  EXPECT_FALSE(contains(out, "Why not")) << out;
}

TEST(PreviewGroups, one_rank) {
  const json shown = preview("groups --world-size 16 --tp 4 --pp 4 --rank 5 --json").json();
  EXPECT_EQ(shown.at("rank"), 5);
  EXPECT_EQ(shown.at("groups").at("tp"), json::parse("[[4,5,6,7]]"));
  EXPECT_EQ(shown.at("groups").at("pp"), json::parse("[[1,5,9,13]]"));
  EXPECT_EQ(shown.at("groups").at("embedding"), json::array());
  EXPECT_TRUE(contains(preview("groups --world-size 16 --tp 4 --pp 4 --rank 5").out, "[1,5,9,13]"));
}

TEST(PreviewGroups, errors_name_the_setting) {
  EXPECT_TRUE(contains(preview("groups --tp 2").error, "world_size"));
  EXPECT_TRUE(contains(preview("groups --world-size 0").error, "world_size is 0"));
  EXPECT_TRUE(contains(preview("groups --world-size 4 --rank 4").error, "rank is 4"));
  EXPECT_TRUE(contains(preview("groups --world-size 4 --order tp-xx").error, "order"));
  EXPECT_TRUE(contains(preview("groups --world-size 4 --order tp-cp-ep-pp-dp --use_tp_pp_dp_mapping").error,
                       "use_tp_pp_dp_mapping"));
  const std::string impossible = preview("groups --world-size 12 --tp 4 --pp 2").error;
  EXPECT_TRUE(contains(impossible, "tp*pp*cp")) << impossible;
  EXPECT_TRUE(contains(impossible, "tp=4 pp=1")) << impossible;
}

TEST(PreviewGroups, a_large_world_takes_no_time_and_few_lines) {
  const auto start = std::chrono::steady_clock::now();
  const Answer table = preview("groups --world-size 16384 --tp 8 --pp 16");
  const Answer data = preview("groups --world-size 16384 --tp 8 --pp 16 --json");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));  // 0.1 s; sanitizers are slow
  EXPECT_LT(std::ranges::count(table.out, '\n'), 40);
  EXPECT_LT(table.out.size(), 8000);
  EXPECT_EQ(data.json().at("groups").at("tp").size(), 2048);
}

}  // namespace
}  // namespace megalith::cli
