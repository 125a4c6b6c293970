// Images and sounds take their places in prompts: at markers, or before the text.
#include "megalith/cli/prompt_media.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/model/families/family.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/support/wav.h"

namespace megalith::cli {
namespace {

using nlohmann::ordered_json;
using testing::expect_error;
using Files = std::vector<std::string>;

const std::string kImage = "<|vision_start|><|image_pad|><|vision_end|>";
const std::string kSound = "<|audio_start|><|audio_pad|><|audio_end|>";

ordered_json marked(ordered_json given, size_t images, size_t sounds = 0) {
  mark_media(given, {.images = Files(images, "a.png"), .sounds = Files(sounds, "a.wav")});
  return given;
}

TEST(PromptMedia, MarkersAreReplacedInOrder) {
  EXPECT_EQ(marked("a <image> b <image>", 2), "a " + kImage + " b " + kImage);
  EXPECT_EQ(marked("what?", 2), kImage + kImage + "what?");
  EXPECT_EQ(marked("a <image> b", 0), "a <image> b") << "without images a marker is text";
  expect_error<DataError>([] { marked("<image>", 2); }, {"the prompt has 1 <image> markers for 2 images"});
  EXPECT_EQ(marked("<audio> or <image>", 1, 1), kSound + " or " + kImage);
  EXPECT_EQ(marked("what <audio>?", 1, 1), kImage + "what " + kSound + "?");
  EXPECT_EQ(marked("what?", 1, 2), kImage + kSound + kSound + "what?");
  expect_error<DataError>([] { marked("<audio><audio>", 0, 1); }, {"the prompt has 2 <audio> markers for 1 sounds"});
}

TEST(PromptMedia, MessagesShareTheImages) {
  const ordered_json system{{"role", "system"}, {"content", "be kind"}};
  const auto user = [](const std::string& text) { return ordered_json{{"role", "user"}, {"content", text}}; };
  EXPECT_EQ(marked({system, user("one <image>"), user("two <image>")}, 2),
            (ordered_json{system, user("one " + kImage), user("two " + kImage)}));
  // Without markers: before the text of the first user's message.
  EXPECT_EQ(marked({system, user("one"), user("two")}, 1), (ordered_json{system, user(kImage + "one"), user("two")}));
  // Contents in parts are left to the template.
  const auto parts =
      ordered_json::parse(R"([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "x"}]}])");
  EXPECT_EQ(marked(parts, 1), parts);
  expect_error<DataError>([&] { marked(ordered_json::array({system}), 1); }, {"no text of a user"});
}

// Padding of the shorter sound is in no frame of its own, and a placeholder grows to the tokens of its sound.
TEST(PromptMedia, SoundsBecomeFramesAndTokens) {
  const testing::TempFolder temp;
  testing::write_wav(temp / "short.wav", {.rate = 16000, .samples = 4'000});  // 25 frames, 4 tokens
  testing::write_wav(temp / "long.wav", {.rate = 8000, .samples = 12'000});   // 150 frames, 13 + 7 tokens
  const auto config = model::read_model_config(testing::golden_dir() / "hf" / "qwen3_omni_moe");
  PromptMedia reader(config, temp.path());
  const int64_t pad = config.media->audio;
  std::vector<int64_t> ids{1, pad, 2, pad, 3};
  const auto media = reader.read({.sounds = {(temp / "short.wav").string(), (temp / "long.wav").string()}}, ids);
  EXPECT_FALSE(media.sees());
  EXPECT_EQ(media.sounds.sizes(), (std::vector<int64_t>{2, config.audio->mel_bins, 150}));
  EXPECT_EQ(media.sound_lengths[0].item<int64_t>(), 25);
  EXPECT_EQ(media.sound_lengths[1].item<int64_t>(), 150);
  std::vector<int64_t> expected{1};
  expected.insert(expected.end(), static_cast<size_t>(config.audio->rows(25)), pad);
  expected.push_back(2);
  expected.insert(expected.end(), static_cast<size_t>(config.audio->rows(150)), pad);
  expected.push_back(3);
  EXPECT_EQ(ids, expected);
  // The same frames as alone, in the order of the bands.
  std::vector<int64_t> one{pad};
  const auto alone = reader.read({.sounds = {(temp / "short.wav").string()}}, one);
  EXPECT_TRUE(alone.sounds[0].equal(media.sounds[0].narrow(1, 0, 25)));
  one = {1, 2};
  expect_error<DataError>([&] { reader.read({.sounds = {(temp / "short.wav").string()}}, one); },
                          {"0 runs of sound placeholders", "for 1 sounds"});
  expect_error<DataError>([&] { reader.read({.sounds = {"nowhere.wav"}}, one); },
                          {"the sound nowhere.wav does not exist"});
}

TEST(PromptMedia, ModelsWithoutATowerAreRefused) {
  const auto refuse = [](const char* family, const PromptFiles& files, const std::string& message) {
    const auto folder = testing::golden_dir() / "hf" / family;
    PromptMedia reader(model::read_model_config(folder), folder);
    std::vector<int64_t> ids{1};
    expect_error<ConfigError>([&] { reader.read(files, ids); }, {message});
  };
  refuse("llama", {.images = {"a.png"}}, "llama models take no images");
  refuse("llama", {.sounds = {"a.wav"}}, "llama models take no sounds; use a model that hears (qwen3_omni_moe)");
  refuse("qwen3_vl", {.sounds = {"a.wav"}}, "qwen3_vl models take no sounds");
}

}  // namespace
}  // namespace megalith::cli
