// Conversations with images against LLaMA-Factory's own code (golden/hf/vision/conversations.json): ids and labels.
#include <gtest/gtest.h>

#include <map>

#include "megalith/base/error.h"
#include "megalith/data/sft/record_encoder.h"
#include "megalith/data/sft/template.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/video_processor.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

using nlohmann::json;

const tokenizer::Tokenizer& tokenizer_called(const std::string& name) {
  static std::map<std::string, tokenizer::Tokenizer> loaded;
  const auto found = loaded.find(name);
  if (found != loaded.end()) return found->second;
  return loaded.emplace(name, tokenizer::Tokenizer::from_folder(testing::tokenizer_folder(name))).first->second;
}

MediaSettings media_settings(const json& kind, const json& options, bool qwen3) {
  media::ImageProcessorSettings settings;
  settings.patch_size = kind.at("patch").get<int64_t>();
  settings.min_pixels = kind.at("min_pixels").get<int64_t>();
  settings.max_pixels = kind.at("max_pixels").get<int64_t>();
  settings.image_max_pixels = options.value("image_max_pixels", settings.image_max_pixels);
  media::VideoProcessorSettings videos{.model = settings, .limits_all_frames = qwen3};
  if (qwen3) videos.model.min_pixels = 4096, videos.model.max_pixels = 25165824;
  videos.video_max_pixels = options.value("video_max_pixels", videos.video_max_pixels);
  return {.images = std::make_shared<const media::ImageProcessor>(settings),
          .videos = std::make_shared<const media::VideoProcessor>(videos),
          .media_dir = testing::golden_dir() / "hf/vision/images",
          .video_fps = options.value("video_fps", 2.0),
          .video_blocks = qwen3};
}

RecordEncoder encoder_of(const json& c, const json& kinds) {
  const json& options = c.at("options");
  const tokenizer::Tokenizer& tokenizer = tokenizer_called(c.at("tokenizer"));
  const bool qwen3 = c.at("family").get<std::string>().starts_with("qwen3");
  return RecordEncoder({.plan = {.cutoff = options.value("cutoff_len", 2048)},
                        .train_on_prompt = options.value("train_on_prompt", false),
                        .mask_history = options.value("mask_history", false),
                        .media = media_settings(kinds.at(qwen3 ? "qwen3_vl" : "qwen2_vl"), options, qwen3)},
                       std::make_shared<const Template>(c.at("template").get<std::string>(), tokenizer), tokenizer);
}

io::Json record_of(const json& c) {
  json messages = c.at("messages");
  if (!c.at("system").is_null())
    messages.insert(messages.begin(), json{{"role", "system"}, {"content", c.at("system")}});
  json videos = json::array();
  for (const json& clip : c.at("videos")) {
    std::vector<std::string> frames;
    for (const auto& file :
         std::filesystem::directory_iterator(testing::golden_dir() / "hf/vision/videos" / clip.get<std::string>()))
      frames.push_back("../videos/" + clip.get<std::string>() + "/" + file.path().filename().string());
    std::ranges::sort(frames);
    videos.push_back(frames);
  }
  return io::parse_json(json{{"messages", messages}, {"images", c.at("images")}, {"videos", videos}}.dump(), "record");
}

// [id, n] stands for n equal ones.
std::vector<int32_t> unpacked(const json& packed) {
  std::vector<int32_t> values;
  for (const json& entry : packed) {
    if (entry.is_array())
      values.insert(values.end(), entry[1].get<size_t>(), entry[0].get<int32_t>());
    else
      values.push_back(entry.get<int32_t>());
  }
  return values;
}

// The grids of a conversation's media in token order; a video is one grid, or one per time patch.
json grids_of(const json& c) {
  json images = c.value("image_grid_thw", json::array()), videos = c.value("video_grid_thw", json::array());
  json grids = json::array();
  for (const json& message : c.at("messages")) {
    const auto text = message.at("content").get<std::string>();
    for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
      const bool image = text.compare(at, kImageMarker.size(), kImageMarker) == 0;
      if (!image && text.compare(at, kVideoMarker.size(), kVideoMarker) != 0) continue;
      json& from = image ? images : videos;
      json grid = from.at(0);
      from.erase(0);
      const bool blocks = !image && c.at("family").get<std::string>().starts_with("qwen3");
      const auto count = blocks ? grid.at(0).get<int>() : 1;
      if (blocks) grid[0] = 1;
      for (int i = 0; i < count; ++i) grids.push_back(grid);
    }
  }
  return grids;
}

TEST(GoldenMedia, ConversationsWithImagesAndVideos) {
  const json cases = testing::golden_json("hf/vision/conversations.json");
  const json kinds = testing::golden_json("hf/vision/images.json").at("kinds");
  int compared = 0, with_videos = 0;
  for (const json& c : cases) {
    SCOPED_TRACE(c.at("name").get<std::string>() + " " + c.at("template").get<std::string>());
    const RecordEncoder encoder = encoder_of(c, kinds);
    const io::Json record = record_of(c);
    const DatasetDescription dataset = infer_format(record, "data.json:1");
    if (c.contains("error")) {
      testing::expect_error<DataError>([&] { encoder.encode(record, dataset, "data.json:1"); },
                                       {"data.json:1: the text has 2 markers <image> and the record 1 image(s)"});
      continue;
    }
    const EncodedRecord encoded = encoder.encode(record, dataset, "data.json:1");
    if (c.at("name") == "cutoff_in_image") {  // the reference cuts through the image, and its model fails later
      EXPECT_FALSE(encoded.sample);
      testing::expect_contains(encoded.problem, "would cut an image");
      EXPECT_FALSE(encoder.is_complete(record, dataset, "data.json:1"));
      continue;
    }
    ASSERT_TRUE(encoded.sample) << encoded.problem;
    const Sequence& row = encoded.sample->row;
    const std::vector<int32_t> ids = unpacked(c.at("input_ids"));
    std::vector<int32_t> labels = unpacked(c.at("labels"));
    // With train_on_prompt the reference predicts placeholders, too; here they never have labels.
    const int32_t image = *tokenizer_called(c.at("tokenizer")).id_of("<|image_pad|>");
    const int32_t video = *tokenizer_called(c.at("tokenizer")).id_of("<|video_pad|>");
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] == image || ids[i] == video) labels[i] = kIgnoredLabel;
    EXPECT_EQ(row.ids, ids);
    EXPECT_EQ(row.labels, labels);
    const json grids = grids_of(c);
    ASSERT_EQ(row.media.size(), grids.size());
    for (size_t i = 0; i < grids.size(); ++i) {
      const MediaReference& medium = row.media[i];
      const bool is_video = medium.kind == MediaKind::kVideo;
      const int32_t pad = is_video ? video : image;
      EXPECT_EQ(json(medium.grid), grids[i]);
      EXPECT_EQ(row.ids[static_cast<size_t>(medium.first)], pad);
      EXPECT_NE(row.ids[static_cast<size_t>(medium.first) - 1], pad);
      EXPECT_NE(row.ids[static_cast<size_t>(medium.first + medium.tokens)], pad);
      with_videos += is_video ? 1 : 0;
      if (is_video && c.contains("second_per_grid_ts")) {
        EXPECT_EQ(medium.seconds, c.at("second_per_grid_ts").at(0).get<double>());
      }
    }
    ++compared;
  }
  EXPECT_GT(compared, 0);
  EXPECT_GT(with_videos, 0);
}

// The rules on one small record, with real files.
class MediaRecords : public ::testing::Test {
 protected:
  EncodedRecord encode(const std::string& record_text, int64_t cutoff = 2048, bool mask_history = false,
                       bool skip_broken = false, SampleKind kind = SampleKind::kConversation) {
    const tokenizer::Tokenizer& tokenizer = tokenizer_called("qwen2_5");
    MediaSettings media{.images = std::make_shared<const media::ImageProcessor>(media::ImageProcessorSettings{}),
                        .media_dir = "tests/data/media",
                        .skip_broken = skip_broken};
    const RecordEncoder encoder(
        {.plan = {.kind = kind, .cutoff = cutoff}, .mask_history = mask_history, .media = media},
        std::make_shared<const Template>("qwen2_vl", tokenizer), tokenizer);
    const io::Json record = io::parse_json(record_text, "record");
    return encoder.encode(record, infer_format(record, "a.jsonl:7"), "a.jsonl:7");
  }
  // Two turns with an image of 4 tokens each (53 x 37 pixels).
  const std::string two_turns = R"({"messages": [{"role": "user", "content": "<image>What?"},
    {"role": "assistant", "content": "This."}, {"role": "user", "content": "And <image>?"},
    {"role": "assistant", "content": "That."}], "images": ["rgb16.png", "lossy.webp"]})";
};

TEST_F(MediaRecords, ACutNeverReachesAnImage) {
  const EncodedRecord whole = encode(two_turns);
  ASSERT_TRUE(whole.sample);
  const auto length = std::ssize(whole.sample->row.ids);
  ASSERT_EQ(whole.sample->row.media.size(), 2U);
  EXPECT_EQ(whole.sample->row.media[1].sources[0].file, "tests/data/media/lossy.webp");
  for (int64_t cutoff = 1; cutoff < length; ++cutoff) {
    for (const bool history : {false, true}) {
      SCOPED_TRACE(cutoff);
      const EncodedRecord cut = encode(two_turns, cutoff, history);
      if (!cut.sample) {
        testing::expect_contains(cut.problem, "would cut an image");
        continue;
      }
      EXPECT_TRUE(cut.cut);
      const Sequence& row = cut.sample->row;
      EXPECT_LE(std::ssize(row.ids), cutoff);
      // Each image that is left is whole, and is the one that stands there.
      for (const MediaReference& medium : row.media)
        for (int64_t i = 0; i < medium.tokens; ++i)
          EXPECT_EQ(row.labels[static_cast<size_t>(medium.first + i)], kIgnoredLabel);
      EXPECT_EQ(count_runs(row.ids, {.image = *tokenizer_called("qwen2_5").id_of("<|image_pad|>")}),
                std::ssize(row.media));
      if (row.media.size() != 1) continue;
      EXPECT_EQ(row.media[0].sources[0].file, history ? "tests/data/media/lossy.webp" : "tests/data/media/rgb16.png");
    }
  }
}

TEST_F(MediaRecords, NamesBadMediaWithFileAndLine) {
  const auto message = [&](const std::string& images, const std::string& text = "<image>") {
    return testing::error_of<DataError>([&] {
      encode(R"({"messages": [{"role": "user", "content": ")" + text +
             R"("}, {"role": "assistant", "content": "x"}], "images": )" + images + "}");
    });
  };
  testing::expect_contains(message(R"(["gone.png"])"),
                           "a.jsonl:7: the image gone.png does not exist (media_dir is tests/data/media)");
  testing::expect_contains(message(R"(["animated.webp"])"),
                           "a.jsonl:7: tests/data/media/animated.webp: an animated WebP");
  testing::expect_contains(message(R"(["expected.json"])"), "not an image that is known here");
  testing::expect_contains(message(R"([3])"), "an image in column \"images\" is 3");
  testing::expect_contains(message(R"(["rgb16.png"])", "<image> <|image_pad|>"), "holds the placeholder token");
  const EncodedRecord skipped = encode(
      R"({"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "x"}], "images": "gone.png"})",
      2048, false, true);
  EXPECT_FALSE(skipped.sample);
  testing::expect_contains(skipped.problem, "gone.png does not exist");
}

TEST_F(MediaRecords, PairsShareTheirImages) {
  const EncodedRecord pair =
      encode(R"({"prompt": "<image>?", "chosen": "a", "rejected": "b", "images": ["rgb16.png"]})", 2048, false, false,
             SampleKind::kPreference);
  ASSERT_TRUE(pair.sample);
  EXPECT_EQ(pair.sample->row.media, pair.sample->rejected->media);
  testing::expect_contains(testing::error_of<DataError>([&] {
                             encode(R"({"prompt": "?", "chosen": "<image>", "rejected": "b", "images": ["rgb16.png"]})",
                                    2048, false, false, SampleKind::kPreference);
                           }),
                           "media belong to the prompt");
  EXPECT_FALSE(encode(R"({"prompt": "<image>?", "chosen": "a", "rejected": "b", "images": ["rgb16.png"]})", 14, false,
                      false, SampleKind::kPreference)
                   .sample);
}

TEST_F(MediaRecords, AModelWithoutTowerRefusesImages) {
  const tokenizer::Tokenizer& tokenizer = tokenizer_called("qwen2_5");
  const RecordEncoder encoder({}, std::make_shared<const Template>("qwen2_vl", tokenizer), tokenizer);
  const io::Json record = io::parse_json(two_turns, "record");
  testing::expect_error<DataError>(
      [&] { encoder.encode(record, infer_format(record, "a"), "a.jsonl:7"); },
      {"a.jsonl:7: the record has 2 image(s), 0 video(s) and 0 sound(s)", "no vision tower"});
}

}  // namespace
}  // namespace megalith::data
