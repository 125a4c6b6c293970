// score and generate with images, as processes: files in, numbers and texts out.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/program_support.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path golden_media_model(const std::string& name) { return golden_dir() / "hf" / name; }

json score(const std::string& model, const fs::path& input, const fs::path& output,
           const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"score",         "--model",      golden_media_model(model).string(),
                                 "--input",       input.string(), "--output",
                                 output.string(), "--json",       "--use_cpu"};
  words.insert(words.end(), more.begin(), more.end());
  const auto result = megalith(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? json::parse(result.out) : json{{"loss", 0}};
}

// The golden file of a model is a batch as it stands.
TEST(MediaCommands, ScoreGivesTheLibrarysLoss) {
  const TempFolder temp;
  for (const std::string model : {"qwen2_5_vl", "qwen3_vl", "qwen3_omni_moe"}) {
    const fs::path folder = golden_media_model(model);
    const double loss = json::parse(std::ifstream(folder / "golden.json")).at("loss");
    for (const std::vector<std::string>& layout :
         {std::vector<std::string>{}, {"--nproc", "2", "--tp", "2"}, {"--nproc", "2", "--cp", "2"}})
      EXPECT_NEAR(score(model, folder / "golden.safetensors", temp / "out", layout).at("loss"), loss, 1e-4) << model;
  }
}

// One row of the tokens 1, 2, …, in a file of its own.
void write_text_batch(const fs::path& file) {
  std::string header = R"({"input_ids":{"dtype":"I64","shape":[1,8],"data_offsets":[0,64]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::ofstream out(file, std::ios::binary);
  const uint64_t size = header.size();
  out.write(reinterpret_cast<const char*>(&size), sizeof size).write(header.data(), std::ssize(header));
  for (int64_t id = 1; id <= 8; ++id) out.write(reinterpret_cast<const char*>(&id), sizeof id);
}

// The tower's rows must reach three layers, but a stage has only two of the four: text alone does not need them.
TEST(MediaCommands, ScoreOfTextLeavesTheTowerOut) {
  const TempFolder temp;
  write_text_batch(temp / "batch");
  const double one = score("qwen3_vl", temp / "batch", temp / "out").at("loss");
  EXPECT_GT(one, 1);
  EXPECT_NEAR(score("qwen3_vl", temp / "batch", temp / "out", {"--nproc", "2", "--pp", "2"}).at("loss"), one, 1e-5);
  const auto refused = megalith({"score", "--model", golden_media_model("qwen3_vl").string(), "--input",
                                 (golden_media_model("qwen3_vl") / "golden.safetensors").string(), "--output",
                                 (temp / "out").string(), "--use_cpu", "--nproc", "2", "--pp", "2"});
  EXPECT_NE(refused.exit_code, 0);
  expect_contains(refused.err, "the first pipeline chunk has only 2");
}

// A model folder with a small tokenizer, a chat template and an image processor.
class GenerateWithImages : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(golden_media_model("qwen2_5_vl") / name, temp_ / name);
    json tokenizer = {{"version", "1.0"},
                      {"added_tokens", json::array()},
                      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
                      {"decoder", {{"type", "ByteLevel"}}},
                      {"model", {{"type", "BPE"}, {"vocab", json::object()}, {"merges", json::array()}}}};
    // Byte i is token i, in the bytes' printable forms.
    int other = 256;
    for (int byte = 0; byte < 248; ++byte) {
      const bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
      const int code = prints ? byte : other++;
      std::string text;
      if (code < 128)
        text = std::string(1, static_cast<char>(code));
      else
        text = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
      tokenizer["model"]["vocab"][text] = byte;
    }
    int id = 248;
    for (const char* text : {"<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"}) {
      tokenizer["model"]["vocab"][text] = id;
      tokenizer["added_tokens"].push_back({{"id", id++},
                                           {"content", text},
                                           {"special", true},
                                           {"normalized", false},
                                           {"lstrip", false},
                                           {"rstrip", false},
                                           {"single_word", false}});
    }
    std::ofstream(temp_ / "tokenizer.json") << tokenizer;
    std::ofstream(temp_ / "tokenizer_config.json")
        << R"({"chat_template":"{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[a]"})";
    std::ofstream(temp_ / "preprocessor_config.json")
        << R"({"patch_size":4,"temporal_patch_size":2,"merge_size":2,"min_pixels":256,"max_pixels":2048,)"
           R"("image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5]})";
  }

  // Returns the lines of the output.
  std::vector<json> generate(std::vector<std::string> words) {
    const auto result = run(std::move(words));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<json> lines;
    std::istringstream out(result.out);
    for (std::string line; std::getline(out, line);) lines.push_back(json::parse(line));
    return lines;
  }
  ProcessResult run(std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"generate", "--model", temp_.path().string(), "--max_new_tokens", "6", "--json", "--use_cpu"});
    return megalith(words);
  }
  static std::string image(const std::string& name) {
    return (golden_dir() / "hf" / "vision" / "images" / name).string();
  }
  // The ids of a text, byte by byte, with the three texts of an image.
  static json ids_of(const std::string& text, int64_t tokens, const std::string& rest) {
    json ids = json::array();
    for (const char c : text) ids.push_back(static_cast<int>(c));
    ids.push_back(248);
    for (int64_t i = 0; i < tokens; ++i) ids.push_back(250);
    ids.push_back(249);
    for (const char c : rest) ids.push_back(static_cast<int>(c));
    return ids;
  }

  TempFolder temp_;
};

TEST_F(GenerateWithImages, MarkersIdsAndMessagesMeanTheSame) {
  const std::string square = image("square_112x112.png");  // 40 x 40 pixels, 25 tokens
  const auto text = generate({"--prompt", "ab<image>cd", "--image", square});
  ASSERT_EQ(text.size(), 1U);
  EXPECT_EQ(text[0]["prompt"], "ab<image>cd");
  EXPECT_EQ(text[0]["images"], json{square});
  ASSERT_EQ(text[0]["ids"].size(), 6U);
  for (const int64_t tokens : {25, 1}) {
    const auto ids = generate({"--ids", "--prompt", ids_of("ab", tokens, "cd").dump(), "--image", square});
    EXPECT_EQ(ids[0]["ids"], text[0]["ids"]) << tokens;
  }
  // Without a marker the image comes first, in the text of the user.
  const auto first = generate({"--prompt", "cd", "--image", square});
  EXPECT_EQ(first[0]["ids"], generate({"--ids", "--prompt", ids_of("", 1, "cd").dump(), "--image", square})[0]["ids"]);
  const auto chat = generate({"--chat", "--prompt", "cd", "--image", square});
  EXPECT_EQ(chat[0]["ids"],
            generate({"--ids", "--prompt", ids_of("[user]", 1, "cd[a]").dump(), "--image", square})[0]["ids"]);
}

TEST_F(GenerateWithImages, LinesHaveImagesAndEveryLayoutAgrees) {
  const std::string square = image("square_112x112.png"), grey = image("grey_120x90.png");
  std::ofstream(temp_ / "prompts") << json{{"prompt", "a<image>b<image>"}, {"images", {square, grey}}} << "\n"
                                   << json("no image") << "\n"
                                   << json{{"prompt", "what"}, {"images", {grey}}} << "\n";
  const std::vector<std::string> words{"--input", (temp_ / "prompts").string()};
  const auto one = generate(words);
  ASSERT_EQ(one.size(), 3U);
  EXPECT_FALSE(one[1].contains("images"));
  EXPECT_EQ(one[2]["ids"], generate({"--prompt", "<image>what", "--image", grey})[0]["ids"]);
  EXPECT_EQ(one[0]["ids"], generate({"--prompt", "a<image>b<image>", "--image", square, "--image", grey})[0]["ids"]);
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"--nproc", "2", "--tp", "2"}, {"--nproc", "2", "--pp", "2"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), layout.begin(), layout.end());
    EXPECT_EQ(generate(all), one);
  }
}

TEST_F(GenerateWithImages, MistakesAreNamed) {
  const std::string square = image("square_112x112.png");
  const auto error = [&](const std::vector<std::string>& words) {
    const auto result = run(words);
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  expect_contains(error({"--prompt", "a<image>b<image>", "--image", square}),
                  "the prompt has 2 <image> markers for 1 images");
  expect_contains(error({"--prompt", "a", "--image", "nowhere.png"}), "the image nowhere.png does not exist");
  expect_contains(error({"--prompt", "a", "--image", (temp_ / "config.json").string()}), "config.json");
  expect_contains(error({"--ids", "--prompt", "[1, 2]", "--image", square}),
                  "the prompt has 0 runs of image placeholders (id 250) for 1 images");
  expect_contains(error({"--ids", "--prompt", "[1, 250, 2]"}), "but there are no media");
  std::ofstream(temp_ / "prompts") << R"({"prompt": "a", "image": "b"})"
                                   << "\n";
  expect_contains(error({"--input", (temp_ / "prompts").string()}),
                  "an object has \"prompt\", \"images\" and \"audios\"");
  expect_contains(error({"--input", (temp_ / "prompts").string(), "--image", square}), "--image belongs to --prompt");
  const auto blind = megalith({"generate", "--model", golden_media_model("llama").string(), "--ids", "--prompt", "[1]",
                               "--image", square, "--use_cpu"});
  expect_contains(blind.err, "llama models take no images");
  std::ofstream(temp_ / "preprocessor_config.json") << R"({"patch_size":14,"temporal_patch_size":2,"merge_size":2})";
  expect_contains(error({"--prompt", "a", "--image", square}), "the image processor cuts patches of 14 pixels");
}

}  // namespace
}  // namespace megalith::testing
