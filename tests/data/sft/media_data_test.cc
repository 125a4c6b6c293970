// Datasets with images and videos, from their files to micro-batches: where the bytes lie makes no difference.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "megalith/base/error.h"
#include "megalith/data/collator.h"
#include "megalith/data/sft/media_text.h"
#include "megalith/data/sft/tokenized_data.h"
#include "megalith/data/table/base64_internal.h"
#include "megalith/io/file_io.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/video_processor.h"
#include "tests/data/table/table_support.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/tokenizers.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;
using testing::TemporaryFolder;

const std::string kMedia = "tests/data/media";

DataRequest request_for(const std::string& dataset, const fs::path& dataset_dir, bool blocks = false) {
  static const auto tokenizer = tokenizer::Tokenizer::from_folder(testing::tokenizer_folder("qwen2_5"));
  DataRequest request;
  request.data.dataset = {dataset};
  request.data.dataset_dir = dataset_dir.string();
  request.data.chat.name = "qwen2_vl";
  request.tokenizer = tokenizer;
  request.media = MediaSettings{
      .images = std::make_shared<const media::ImageProcessor>(media::ImageProcessorSettings{}),
      .videos =
          std::make_shared<const media::VideoProcessor>(media::VideoProcessorSettings{.limits_all_frames = blocks}),
      .media_dir = kMedia,
      .video_blocks = blocks};
  return request;
}

std::vector<Sample> loaded_samples(const DataRequest& request) {
  const auto train = load_tokenized_data(request).train;
  std::vector<Sample> samples;
  for (int64_t i = 0; i < train->size(); ++i) samples.push_back(train->sample(i));
  return samples;
}

MicroBatch batch_of(const DataRequest& request, const std::vector<Sample>& samples) {
  return Collator({.padding = Padding::kNone, .images = request.media->images, .videos = request.media->videos})
      .collate(samples);
}

// The same tokens and pixels, wherever the bytes come from.
void expect_same(const DataRequest& request, const std::vector<Sample>& made, const std::vector<Sample>& expected) {
  ASSERT_EQ(made.size(), expected.size());
  for (size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ(made[i].row.ids, expected[i].row.ids);
    EXPECT_EQ(made[i].row.labels, expected[i].row.labels);
    ASSERT_EQ(made[i].row.media.size(), expected[i].row.media.size());
    for (size_t m = 0; m < made[i].row.media.size(); ++m) {
      EXPECT_EQ(made[i].row.media[m].grid, expected[i].row.media[m].grid);
      EXPECT_EQ(made[i].row.media[m].first, expected[i].row.media[m].first);
    }
    const MicroBatch one = batch_of(request, {made[i]}), other = batch_of(request, {expected[i]});
    EXPECT_EQ(one.pixels.defined(), other.pixels.defined());
    if (one.pixels.defined()) {
      EXPECT_TRUE(at::equal(one.pixels, other.pixels)) << i;
    }
  }
}

#ifdef MEGALITH_ARROW
TEST(MediaData, BytesInTablesAreThoseOfFiles) {
  const std::vector<Sample> files = loaded_samples(request_for("images.jsonl", table_file("")));
  ASSERT_EQ(files.size(), 4U);
  EXPECT_EQ(files[1].row.media.size(), 2U);
  for (const char* name : {"images.parquet", "images.arrow"}) {
    SCOPED_TRACE(name);
    DataRequest request = request_for(name, table_file(""));
    expect_same(request, loaded_samples(request), files);
    // Through a cache: the bytes lie beside the tokens, and move with them.
    const TemporaryFolder folder;
    request.data.tokenized_path = folder.path() / "tokens";
    loaded_samples(request);
    fs::rename(folder.path() / "tokens", folder.path() / "moved");
    request.data.tokenized_path = folder.path() / "moved";
    const std::vector<Sample> stored = loaded_samples(request);
    expect_same(request, stored, files);
    EXPECT_EQ(stored[0].row.media[0].sources[0].file, (folder.path() / "moved/train/media_bytes.bin").string());
    EXPECT_EQ(stored[1].row.media[1].sources[0].file, kMedia + "/optimized.jpg");  // given by its path alone
    // The rows of images, not of the whole table: rgb16.png twice and lossy.webp.
    EXPECT_EQ(fs::file_size(folder.path() / "moved/train/media_bytes.bin"),
              2 * fs::file_size(kMedia + "/rgb16.png") + fs::file_size(kMedia + "/lossy.webp"));
    // As a stream.
    request.data.tokenized_path.reset();
    request.data.buffer_size = 1;
    const auto stream = open_streamed_data(request).train(0);
    std::vector<Sample> streamed;
    while (auto sample = stream->next()) streamed.push_back(*std::move(sample));
    expect_same(request, streamed, files);
  }
}

TEST(MediaData, OneStructIsOneImage) {
  const TemporaryFolder folder;
  folder.write("dataset_info.json",
               fmt::format(R"({{"one": {{"file_name": "{}", "columns": {{"prompt": "instruction", "response": "output",
                                "images": "picture"}}}}}})",
                           fs::absolute(table_file("one_image.parquet")).string()));
  const DataRequest request = request_for("one", folder.path());
  const std::vector<Sample> samples = loaded_samples(request);
  ASSERT_EQ(samples.size(), 2U);
  expect_same(request, {samples[0]}, {loaded_samples(request_for("images.jsonl", table_file("")))[0]});
  EXPECT_TRUE(samples[1].row.media.empty());
}

TEST(MediaData, DamagedBytesAreNamed) {
  const TemporaryFolder folder;
  DataRequest request = request_for("images.parquet", table_file(""));
  request.data.tokenized_path = folder.path() / "tokens";
  std::vector<Sample> samples = loaded_samples(request);
  samples[0].row.media[0].sources[0].bytes = 1 << 30;
  expect_contains(error_of<DataError>([&] { batch_of(request, {samples[0]}); }),
                  "media_bytes.bin, bytes 0 to 1073741824: the file has become shorter");
  fs::resize_file(folder.path() / "tokens/train/media_bytes.bin", 100);
  expect_contains(error_of<DataError>([&] { loaded_samples(request); }), "do not fit one another");
}
#endif

TEST(MediaData, BytesInJson) {
  const TemporaryFolder folder;
  const std::string bytes = io::read_text_file(kMedia + "/rgb16.png", 1 << 20);
  std::string text;
  append_base64(bytes, text);
  EXPECT_EQ(decode_base64(text), bytes);
  const std::string turns = R"("messages": [{"role": "user", "content": "<image>What?"},
    {"role": "assistant", "content": "This."}])";
  const auto one_line = [](std::string record) {
    std::ranges::replace(record, '\n', ' ');
    return record;
  };
  const auto write = [&](const std::string& image) {
    folder.write("d.jsonl", one_line("{" + turns + ", \"images\": [" + image + "]}"));
    return request_for("d.jsonl", folder.path());
  };
  const std::vector<Sample> expected = {loaded_samples(request_for("images.jsonl", table_file("")))[0]};
  for (const char* image : {R"({"bytes": null, "path": "rgb16.png"})", R"({"path": "rgb16.png"})"}) {
    const DataRequest request = write(image);
    expect_same(request, loaded_samples(request), expected);
  }
  const DataRequest request = write(R"({"bytes": {"base64": ")" + text + R"("}, "path": null})");
  expect_same(request, loaded_samples(request), expected);
  const auto problem = [&](const std::string& image) {
    return error_of<DataError>([&] { loaded_samples(write(image)); });
  };
  expect_contains(problem(R"({"bytes": null, "path": null})"),
                  "d.jsonl:1: an image in column \"images\" has neither bytes nor a path");
  expect_contains(problem(R"({"bytes": "x"})"), "it must be binary in a Parquet or Arrow file");
  expect_contains(problem(R"({"bytes": {"base64": "x"}})"), "{\"base64\": text}");
  expect_contains(problem(R"({"file": "x"})"), "must be a path, or an object with \"bytes\" or \"path\"");
  expect_contains(problem(R"({"bytes": {"base64": "R0lG"}, "path": "a.gif"})"), "d.jsonl:1: a.gif: ");
  expect_contains(problem("null"), "d.jsonl:1: an image in column \"images\" is null");
}

#ifdef MEGALITH_VIDEO
// A whole video file inside the record: the same samples and pixels as by its path, also through a token folder.
TEST(MediaData, BytesOfVideosInJson) {
  const std::string clip = fs::absolute(kMedia + "/video/clip.mp4").string();
  std::string text;
  append_base64(io::read_text_file(clip, 1 << 20), text);
  for (const bool blocks : {false, true}) {
    const TemporaryFolder folder;
    const auto request = [&](const char* name, const std::string& video) {
      folder.write(name, R"({"messages": [{"role": "user", "content": "<video>What?"},)"
                         R"( {"role": "assistant", "content": "This."}], "videos": [)" +
                             video + "]}\n");
      return request_for(name, folder.path(), blocks);
    };
    const DataRequest by_path = request("path.jsonl", '"' + clip + '"');
    DataRequest by_bytes = request("bytes.jsonl", R"({"bytes": {"base64": ")" + text + R"("}, "path": null})");
    const std::vector<Sample> expected = loaded_samples(by_path);
    ASSERT_EQ(expected.size(), 1U);
    EXPECT_EQ(expected[0].row.media.size() > 1, blocks);
    expect_same(by_bytes, loaded_samples(by_bytes), expected);
    by_bytes.data.tokenized_path = folder.path() / "tokens";
    loaded_samples(by_bytes);
    const std::vector<Sample> stored = loaded_samples(by_bytes);
    expect_same(by_bytes, stored, expected);
    // Stored once, however many frames refer to it.
    EXPECT_EQ(fs::file_size(folder.path() / "tokens/train/media_bytes.bin"), fs::file_size(clip));
    expect_contains(error_of<DataError>([&] {
                      loaded_samples(request("odd.jsonl", R"({"bytes": {"base64": "R0lG"}, "path": "a.mp4"})"));
                    }),
                    "odd.jsonl:1: a.mp4: ");
  }
}
#endif

TEST(MediaData, Base64) {
  for (const std::string& bytes :
       {std::string(), std::string("a"), std::string("ab"), std::string("abc"), std::string("\0\xff\x80z", 4)}) {
    std::string text;
    append_base64(bytes, text);
    EXPECT_EQ(text.size() % 4, 0U);
    EXPECT_EQ(decode_base64(text), bytes);
  }
  std::string text;
  append_base64("any carnal pleas", text);
  EXPECT_EQ(text, "YW55IGNhcm5hbCBwbGVhcw==");
  for (const char* bad : {"a", "ab=c", "a===", "ab c", "====", "YQ==YQ=="}) EXPECT_FALSE(decode_base64(bad)) << bad;
}

// Every kind of bad or odd image, each with what becomes of it: a message with file and line, or a sample.
class OddImages : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto copy = [&](const std::string& from, const std::string& to) { fs::copy_file(from, folder_.path() / to); };
    const std::string golden = (testing::golden_dir() / "hf/vision/images").string();
    copy(golden + "/photo_320x240.jpg", "cut.jpg");
    fs::resize_file(folder_.path() / "cut.jpg", fs::file_size(folder_.path() / "cut.jpg") / 2);
    copy(golden + "/one_1x1.png", "one.png");
    copy(golden + "/cmyk_66x50.jpg", "cmyk.jpg");
    copy(kMedia + "/odd/strip_20000x1.png", "strip.png");
    copy(kMedia + "/animated.png", "animated.png");
    copy(kMedia + "/animated.webp", "animated.webp");
    copy(kMedia + "/rgb16.png", "big.png");  // 100 MB after its last chunk
    fs::resize_file(folder_.path() / "big.png", 100 << 20);
    folder_.write("empty.png", "");
    folder_.write("text.png", "no image");
    folder_.write("gif.gif", "GIF89a");
  }
  DataRequest request(const std::vector<std::string>& files, bool skip = false) {
    std::string lines;
    for (const std::string& file : files)
      lines += R"({"prompt": "<image>?", "response": "x", "images": [")" + file + "\"]}\n";
    folder_.write("d.jsonl", lines);
    DataRequest made = request_for("d.jsonl", folder_.path());
    made.media->media_dir = folder_.path();
    made.media->decode_all = true;
    made.media->skip_broken = skip;
    return made;
  }
  std::string problem(const std::string& file) {
    return error_of<DataError>([&] { loaded_samples(request({"one.png", file})); });
  }
  TemporaryFolder folder_;
};

TEST_F(OddImages, AreReadOrNamed) {
  for (const char* file : {"one.png", "cmyk.jpg", "big.png", "strip.png"}) {
    const DataRequest made = request({file});
    const std::vector<Sample> samples = loaded_samples(made);
    ASSERT_EQ(samples.size(), 1U) << file;
    EXPECT_EQ(batch_of(made, samples).pixels.size(0), samples[0].row.media[0].tokens * 4) << file;
  }
  const std::string place = (folder_.path() / "d.jsonl").string() + ":2: ";
  for (const auto& [file, words] :
       std::vector<std::pair<std::string, std::string>>{{"cut.jpg", "cut off"},
                                                        {"animated.png", "an animated PNG"},
                                                        {"animated.webp", "an animated WebP"},
                                                        {"empty.png", "empty"},
                                                        {"text.png", "not an image that is known here"},
                                                        {"gif.gif", "Convert it: magick"},
                                                        {"gone.png", "does not exist"}}) {
    const std::string message = problem(file);
    EXPECT_TRUE(message.starts_with(place)) << message;
    expect_contains(message, file);
    expect_contains(message, words);
  }
}

// Without decode_all a damaged body shows when the micro-batch is made, and the message names the image.
TEST_F(OddImages, DamageBehindTheHeaderShowsAtTheLatestInTraining) {
  DataRequest made = request({"cut.jpg"});
  made.media->decode_all = false;
  const std::vector<Sample> samples = loaded_samples(made);
  expect_contains(error_of<DataError>([&] { batch_of(made, samples); }), "cut.jpg: a damaged JPEG file");
}

TEST_F(OddImages, SkippedOnesAreCounted) {
  DataRequest made = request({"one.png", "cut.jpg", "gone.png", "animated.png", "cmyk.jpg", "text.png"}, true);
  const TokenizedData data = load_tokenized_data(made);
  EXPECT_EQ(data.train->size(), 2);
  expect_contains(data.report, "2 samples of 6 records");
  expect_contains(data.report, "; 4 records were left out because an image, a video or a sound cannot be read");
  // A long image that does not fit, beside one that does.
  fs::copy_file(testing::golden_dir() / "hf/vision/images/large_1400x1000.jpg", folder_.path() / "large.jpg");
  made = request({"one.png", "large.jpg", "gone.png"}, true);
  made.data.cutoff_len = 100;
  const std::string report = load_tokenized_data(made).report;
  expect_contains(report, "1 samples of 3 records");
  expect_contains(report, "; 1 records were left out because cutoff_len would cut an image, a video or a sound");
  expect_contains(report, "; 1 records were left out because an image, a video or a sound cannot be read");
  EXPECT_EQ(report.find("invalid"), std::string::npos);
}

// A side of 20000 pixels is cut to 180 times the other, as in LLaMA-Factory; a single row of so many stays an error.
TEST_F(OddImages, LongImagesAreCutOrNamed) {
  const media::ImageProcessor processor(media::ImageProcessorSettings{});
  EXPECT_EQ(processor.pre_resized({20000, 1}, "a.png"), (media::ImageSize{5040, 28}));
  expect_contains(error_of<DataError>([&] {
                    processor.pre_resized({1'000'000, 1}, "a.png");
                  }),
                  "a.png: 1000000 x 1 pixels");
}

// Frames of the golden clips, as absolute paths in JSON.
std::string frames_of(const std::string& clip) {
  std::vector<std::string> frames;
  for (const auto& file : fs::directory_iterator(testing::golden_dir() / "hf/vision/videos" / clip))
    frames.push_back(fs::absolute(file.path()).string());
  std::ranges::sort(frames);
  return nlohmann::json(frames).dump();
}

// A video between images, in both formats, in both ways of writing videos; through a cache.
TEST(MediaData, VideosOfFrames) {
  const TemporaryFolder folder;
  folder.write("dataset_info.json", R"({
    "alpaca": {"file_name": "a.jsonl", "columns": {"prompt": "q", "response": "a", "images": "i", "videos": "v"}},
    "chats": {"file_name": "c.jsonl", "formatting": "sharegpt",
              "columns": {"messages": "conversations", "images": "i", "videos": "v"}}})");
  const std::string media =
      R"("i": ["rgb16.png", "lossy.webp"], "v": [)" + frames_of("clip5_40x70") + "," + frames_of("clip1_30x20") + "]}";
  const std::string text = "<image>and<video>,<video>or<image>?";
  folder.write("a.jsonl", R"({"q": ")" + text + R"(", "a": "This.", )" + media);
  folder.write("c.jsonl", R"({"conversations": [{"from": "human", "value": ")" + text +
                              R"("}, {"from": "gpt", "value": "This."}], )" + media);
  for (const bool blocks : {false, true}) {
    SCOPED_TRACE(blocks);
    DataRequest request = request_for("alpaca", folder.path(), blocks);
    const std::vector<Sample> samples = loaded_samples(request);
    ASSERT_EQ(samples.size(), 1U);
    const std::vector<MediaReference>& row = samples[0].row.media;
    std::vector<bool> videos;
    int64_t last = 0;
    for (const MediaReference& medium : row) {
      videos.push_back(medium.kind == MediaKind::kVideo);
      EXPECT_GT(medium.first, last);
      last = medium.first;
      EXPECT_EQ(medium.kind == MediaKind::kVideo && blocks ? 1 : medium.grid[0], medium.grid[0]);
    }
    EXPECT_EQ(videos, blocks ? std::vector<bool>({false, true, true, true, true, false})
                             : std::vector<bool>({false, true, true, false}));
    // Five frames: the last time patch has one, which is repeated.
    EXPECT_EQ(row[1].sources.size(), blocks ? 2U : 5U);
    const MicroBatch batch = batch_of(request, samples);
    EXPECT_EQ(batch.grids.size(0), std::ssize(row));
    int64_t patches = 0, tokens = 0;
    for (const MediaReference& medium : row) {
      patches += medium.grid[0] * medium.grid[1] * medium.grid[2];
      tokens += medium.tokens;
    }
    EXPECT_EQ(batch.pixels.size(0), patches);
    EXPECT_EQ(patches, 4 * tokens);
    const DataRequest chats = request_for("chats", folder.path(), blocks);
    expect_same(request, loaded_samples(chats), samples);
    request.cache_folder = folder.path() / "cache";
    EXPECT_EQ(loaded_samples(request), samples);
  }
}

// The rows of a video's time patches are those of the video, whether it is one medium or several.
TEST(MediaData, BlocksHaveTheRowsOfTheVideo) {
  const TemporaryFolder folder;
  folder.write("d.jsonl", R"({"prompt": "<video>?", "response": "x", "videos": [)" + frames_of("clip5_40x70") + "]}");
  const DataRequest whole = request_for("d.jsonl", folder.path());
  DataRequest blocks = whole;
  blocks.media->video_blocks = true;
  const MicroBatch one = batch_of(whole, loaded_samples(whole)), several = batch_of(blocks, loaded_samples(blocks));
  EXPECT_EQ(one.grids.size(0), 1);
  EXPECT_EQ(several.grids.size(0), 3);
  EXPECT_TRUE(at::equal(one.pixels, several.pixels));
}

#ifdef MEGALITH_VIDEO
// Sampling, times and grids of a video file, and its frames: those of the same frames given as images.
TEST(MediaData, VideoFiles) {
  const TemporaryFolder folder;
  const auto record = [](const std::string& videos) {
    return R"({"prompt": "<video>?", "response": "x", "videos": )" + videos + "}";
  };
  folder.write("file.jsonl", record(R"("video/clip.mp4")"));
  for (const bool blocks : {false, true}) {
    SCOPED_TRACE(blocks);
    DataRequest request = request_for("file.jsonl", folder.path(), blocks);
    // 3.25 seconds, 13 frames: 2 per second are 6, at 0, 2.4, 4.8, …, rounded down.
    const std::vector<Sample> samples = loaded_samples(request);
    ASSERT_EQ(samples.size(), 1U);
    std::vector<int64_t> numbers;
    for (const MediaReference& medium : samples[0].row.media) {
      EXPECT_EQ(medium.seconds, 2 / (6 / 3.25));
      for (const MediaSource& source : medium.sources) numbers.push_back(source.frame);
    }
    EXPECT_EQ(numbers, (std::vector<int64_t>{0, 2, 4, 7, 9, 12}));
    const MicroBatch batch = batch_of(request, samples);
    EXPECT_EQ(batch.grids.size(0), blocks ? 3 : 1);
    if (blocks)
      expect_contains(request.tokenizer->decode(samples[0].row.ids), "<0.2 seconds><|vision_start|><|video_pad|>");
    // Frame 0 and 12 are known: with one frame per two seconds there is one time patch of one frame.
    request.media->video_fps = 0.5;
    const std::vector<Sample> one = loaded_samples(request);
    EXPECT_EQ(one[0].row.media.at(0).sources.size(), 1U);
    folder.write("frames.jsonl", record(R"([["video/clip.mp4.0.png"]])"));
    DataRequest images = request_for("frames.jsonl", folder.path(), blocks);
    const MicroBatch by_images = batch_of(images, loaded_samples(images)), by_file = batch_of(request, one);
    ASSERT_EQ(by_file.pixels.sizes(), by_images.pixels.sizes());
    // FFmpeg's versions may round differently by a step.
    EXPECT_LT((by_file.pixels - by_images.pixels).abs().max().item<float>(), 0.05F);
    request.media->video_fps = 100;
    request.media->video_maxlen = 5;
    size_t taken = 0;
    const std::vector<Sample> most = loaded_samples(request);
    for (const MediaReference& medium : most[0].row.media) taken += medium.sources.size();
    EXPECT_EQ(taken, 5U);
    request.cache_folder = folder.path() / "cache";
    EXPECT_EQ(batch_of(request, loaded_samples(request)).grids.size(0), blocks ? 3 : 1);
  }
  // One video in two places of a micro-batch is decoded once.
  folder.write("twice.jsonl",
               R"({"prompt": "<video>?", "response": "x", "videos": ["video/clip.mkv", "video/clip.mkv"]})");
  expect_contains(error_of<DataError>([&] { loaded_samples(request_for("twice.jsonl", folder.path())); }),
                  "1 marker <video> and the record 2 video(s)");
  folder.write("twice.jsonl", record(R"("video/clip.mkv")") + "\n" + record(R"("video/clip.mkv")"));
  for (const bool blocks : {false, true}) {
    const DataRequest request = request_for("twice.jsonl", folder.path(), blocks);
    EXPECT_EQ(batch_of(request, loaded_samples(request)).grids.size(0), blocks ? 2 : 1);
  }
}

TEST(MediaData, BadVideoFilesAreNamedOrSkipped) {
  const TemporaryFolder folder;
  folder.write("bad.mp4", "no video");
  folder.write("d.jsonl", R"({"prompt": "<video>?", "response": "x", "videos": "bad.mp4"}
{"prompt": "<video>?", "response": "x", "videos": "gone.mp4"}
{"prompt": "Text.", "response": "x"})");
  DataRequest request = request_for("d.jsonl", folder.path());
  request.media->media_dir = folder.path();
  expect_contains(error_of<DataError>([&] { loaded_samples(request); }),
                  "d.jsonl:1: " + (folder.path() / "bad.mp4").string() + ": not a video");
  request.media->skip_broken = true;
  const TokenizedData data = load_tokenized_data(request);
  EXPECT_EQ(data.train->size(), 1);
  expect_contains(data.report, "1 samples of 3 records");
  expect_contains(data.report, "2 records were left out because an image, a video or a sound cannot be read");
}
#endif

TEST(MediaData, NamesBadVideosWithFileAndLine) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& videos, const std::string& text = "<video>") {
    folder.write("d.jsonl", R"({"prompt": ")" + text + R"(", "response": "x", "videos": )" + videos + "}");
    return error_of<DataError>([&] { loaded_samples(request_for("d.jsonl", folder.path())); });
  };
  expect_contains(message(R"([["rgb16.png", "gone.png"]])"), "d.jsonl:1: the frame gone.png does not exist");
  expect_contains(message(R"([["rgb16.png", "alpha.webp"], ["rgb16.png"]])"),
                  "the text has 1 marker <video> and the record 2 video(s)");
  expect_contains(message("[]"), "the text has 1 marker <video> and the record 0 video(s)");
  expect_contains(message("[[]]"), "d.jsonl:1: a video in column \"videos\" has no frames");
  expect_contains(message("[3]"), "d.jsonl:1: a video in column \"videos\" is 3");
  expect_contains(message(R"([["rgb16.png", "grey2.png"]])"), "all frames of a video have one size");
  expect_contains(message(R"([["rgb16.png"]])", "<video> <|video_pad|>"), "holds the placeholder token");
  DataRequest without = request_for("d.jsonl", folder.path());
  without.media->videos = nullptr;
  folder.write("d.jsonl", R"({"prompt": "<video>", "response": "x", "videos": [["rgb16.png"]]})");
  expect_contains(error_of<DataError>([&] { loaded_samples(without); }), "d.jsonl:1: the record has a video");
}

}  // namespace
}  // namespace megalith::data
