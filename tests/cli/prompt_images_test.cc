// Images take their places in prompts: at markers, or before the text.
#include "megalith/cli/prompt_images.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/model/families/family.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"

namespace megalith::cli {
namespace {

using nlohmann::ordered_json;
using testing::expect_error;

const std::string kImage = "<|vision_start|><|image_pad|><|vision_end|>";

ordered_json marked(ordered_json given, size_t images) {
  mark_images(given, images);
  return given;
}

TEST(PromptImages, MarkersAreReplacedInOrder) {
  EXPECT_EQ(marked("a <image> b <image>", 2), "a " + kImage + " b " + kImage);
  EXPECT_EQ(marked("what?", 2), kImage + kImage + "what?");
  EXPECT_EQ(marked("a <image> b", 0), "a <image> b") << "without images a marker is text";
  expect_error<DataError>([] { marked("<image>", 2); }, {"the prompt has 1 <image> markers for 2 images"});
}

TEST(PromptImages, MessagesShareTheImages) {
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

TEST(PromptImages, ModelsThatDoNotSeeAreRefused) {
  const auto folder = testing::golden_dir() / "hf" / "llama";
  expect_error<ConfigError>([&] { PromptImages(model::read_model_config(folder), folder); },
                            {"llama models take no images"});
}

}  // namespace
}  // namespace megalith::cli
