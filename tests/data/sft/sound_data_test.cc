// Records with sounds, from their files to micro-batches.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/data/collator.h"
#include "megalith/data/sft/media_text.h"
#include "megalith/data/sft/tokenized_data.h"
#include "megalith/data/table/base64_internal.h"
#include "megalith/io/file_io.h"
#include "megalith/media/audio.h"
#include "megalith/media/image_processor.h"
#include "megalith/media/sound_processor.h"
#include "megalith/media/video_processor.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tokenizers.h"
#include "tests/support/wav.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_contains;
using testing::expect_error;
using testing::write_wav;

constexpr int64_t kMelBins = 16;

// Tokens of Qwen2.5 that are as good as those of Qwen3-Omni, which this tokenizer lacks.
const std::string kSoundStart = "<|object_ref_start|>", kSoundPad = "<|box_start|>", kSoundEnd = "<|object_ref_end|>";

class SoundData : public ::testing::Test {
 protected:
  SoundData() {
    write_wav(folder_ / "second.wav", {.rate = 16000, .samples = 16'000});
    write_wav(folder_ / "slow.wav", {.rate = 8000, .samples = 20'000, .hertz = 300});
    write_wav(folder_ / "short.wav", {.rate = 22050, .samples = 5'000, .hertz = 900});
  }

  DataRequest request(const std::vector<json>& records) {
    std::ofstream file(folder_ / "sounds.jsonl");
    for (const json& record : records) file << record.dump() << "\n";
    file.close();
    static const auto tokenizer = tokenizer::Tokenizer::from_folder(testing::tokenizer_folder("qwen2_5"));
    DataRequest request;
    request.data.dataset = {(folder_ / "sounds.jsonl").string()};
    request.data.chat.name = "qwen3_omni_nothink";
    request.tokenizer = tokenizer;
    request.media = MediaSettings{
        .images = std::make_shared<const media::ImageProcessor>(media::ImageProcessorSettings{}),
        .videos = std::make_shared<const media::VideoProcessor>(media::VideoProcessorSettings{}),
        .sounds = std::make_shared<const media::SoundProcessor>(media::SoundProcessorSettings{.bins = kMelBins}),
        .media_dir = folder_.path(),
        .positions = {.time = layout::TimeRule::kSeconds, .positions_per_second = 13},
        .sound_start = kSoundStart,
        .sound_pad = kSoundPad,
        .sound_end = kSoundEnd};
    return request;
  }
  static json record(const std::string& question, const json& sounds) {
    return {{"messages", {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", "a bell"}}}},
            {"audios", sounds}};
  }
  static std::vector<Sample> samples_of(const DataRequest& request) {
    const auto train = load_tokenized_data(request).train;
    std::vector<Sample> samples;
    for (int64_t i = 0; i < train->size(); ++i) samples.push_back(train->sample(i));
    return samples;
  }
  static MicroBatch batch_of(const DataRequest& request, const std::vector<Sample>& samples) {
    return Collator({.padding = Padding::kNone,
                     .images = request.media->images,
                     .videos = request.media->videos,
                     .sounds = request.media->sounds,
                     .media_threads = 2,
                     .positions = request.media->positions})
        .collate(samples);
  }
  // The frames of a file, without the way through data.
  at::Tensor frames_of(const std::string& name) const {
    const media::SoundProcessor processor({.bins = kMelBins});
    media::Sound sound = media::decode_sound(io::read_text_file(folder_ / name, 1 << 24), name);
    const media::SoundHeader header{sound.rate, 1, std::ssize(sound.samples)};
    at::Tensor rows = at::empty({processor.frames(header, name), kMelBins}, at::kFloat);
    processor.write_frames(std::move(sound), rows.mutable_data_ptr<float>());
    return rows;
  }

  static std::vector<int64_t> numbers(const at::Tensor& tensor) {
    return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
  }

  testing::TempFolder folder_;
};

TEST_F(SoundData, FramesLengthsAndRows) {
  const DataRequest request =
      this->request({record("<audio>first, then <audio>", {"second.wav", "slow.wav"}),
                     record("nothing to hear", json::array()), record("again <audio>", "second.wav")});
  const std::vector<Sample> samples = samples_of(request);
  ASSERT_EQ(samples.size(), 3U);
  // 100 frames are 13 tokens; 2.5 seconds are 250 frames and 33 tokens.
  ASSERT_EQ(samples[0].row.media.size(), 2U);
  EXPECT_EQ(samples[0].row.media[0].tokens, 13);
  EXPECT_EQ(samples[0].row.media[1].tokens, 33);
  EXPECT_EQ(samples[0].row.media[1].grid, (std::array<int64_t, 3>{250, 1, 1}));
  EXPECT_EQ(samples[0].row.media[1].kind, MediaKind::kSound);
  const MicroBatch batch = batch_of(request, samples);
  EXPECT_EQ(numbers(batch.audio_lengths), (std::vector<int64_t>{100, 250}));  // one occurs twice
  EXPECT_TRUE(at::equal(batch.audio_features, at::cat({frames_of("second.wav"), frames_of("slow.wav")})));
  EXPECT_FALSE(batch.pixels.defined() || batch.grids.defined() || batch.visual_rows.defined());
  EXPECT_FALSE(batch.layout.has_coordinates());  // positions of sound are those of text
  const std::vector<int64_t> ids = numbers(batch.ids), rows = numbers(batch.audio_rows), labels = numbers(batch.labels);
  const int32_t pad = *request.tokenizer->id_of(kSoundPad), start = *request.tokenizer->id_of(kSoundStart);
  int64_t seen = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(rows[i] >= 0, ids[i] == pad) << i;
    if (ids[i] != pad) continue;
    EXPECT_EQ(rows[i], seen < 46 ? seen : seen - 46);
    if (seen == 0) {
      EXPECT_EQ(ids[i - 1], start);
    }
    ++seen;
    EXPECT_EQ(labels[i - 1], kIgnoredLabel);
  }
  EXPECT_EQ(seen, 59);
}

// Tokens on disk hold references, and the bytes of sounds that came as such.
TEST_F(SoundData, BytesAndTokenFolders) {
  const std::string bytes = io::read_text_file(folder_ / "slow.wav", 1 << 24);
  std::string held;
  append_base64(bytes, held);
  DataRequest request =
      this->request({record("<audio>", {{{"bytes", {{"base64", held}}}, {"path", nullptr}}}),
                     record("<audio> <audio>", {"short.wav", {{"bytes", nullptr}, {"path", "slow.wav"}}})});
  const MicroBatch expected = batch_of(request, samples_of(request));
  request.data.tokenized_path = folder_ / "tokens";
  for (int time = 0; time < 2; ++time) {  // written, then read
    const MicroBatch made = batch_of(request, samples_of(request));
    EXPECT_TRUE(at::equal(made.audio_features, expected.audio_features));
    EXPECT_TRUE(at::equal(made.audio_rows, expected.audio_rows));
    EXPECT_TRUE(at::equal(made.ids, expected.ids));
  }
  EXPECT_TRUE(at::equal(expected.audio_features.narrow(0, 0, 250), frames_of("slow.wav")));
  expect_contains(io::read_text_file(folder_ / "tokens/train/info.json", 1 << 20), "\"version\": 4");
}

#ifdef MEGALITH_ARROW
// A list of structs {bytes, path}, and one struct: WAV and MP3 in the table, FLAC by its path alone.
TEST_F(SoundData, BytesInTablesAreThoseOfFiles) {
  const fs::path tables = fs::absolute("tests/data/tables");
  const auto of_table = [&](const std::string& name) {
    DataRequest request = this->request({});
    request.data.dataset = {name};
    request.data.dataset_dir = tables.string();
    request.media->media_dir = fs::absolute("tests/data/media/sounds");
    return request;
  };
  const DataRequest lines = of_table("sounds.jsonl");
  if (!media::can_decode_all_sounds()) {
    expect_error<ConfigError>([&] { samples_of(lines); }, {"libsndfile1-dev"});
    return;
  }
  const std::vector<Sample> files = samples_of(lines);
  ASSERT_EQ(files.size(), 4U);
  EXPECT_EQ(files[1].row.media.size(), 2U);
  EXPECT_TRUE(files[2].row.media.empty());
  const auto expect_same = [&](const DataRequest& request, const std::vector<Sample>& samples) {
    ASSERT_EQ(samples.size(), files.size());
    for (size_t i = 0; i < files.size(); ++i) {
      const MicroBatch made = batch_of(request, {samples[i]}), expected = batch_of(lines, {files[i]});
      EXPECT_TRUE(at::equal(made.ids, expected.ids)) << i;
      EXPECT_TRUE(at::equal(made.labels, expected.labels)) << i;
      ASSERT_EQ(made.audio_features.defined(), !files[i].row.media.empty()) << i;
      if (!made.audio_features.defined()) continue;
      EXPECT_TRUE(at::equal(made.audio_rows, expected.audio_rows)) << i;
      EXPECT_TRUE(at::equal(made.audio_features, expected.audio_features)) << i;
    }
  };
  for (const char* name : {"sounds.parquet", "sounds.arrow"}) {
    SCOPED_TRACE(name);
    DataRequest request = of_table(name);
    expect_same(request, samples_of(request));
    // Through a token folder, which holds the bytes of the two WAV files and of the MP3 file.
    request.data.tokenized_path = folder_ / name / "tokens";
    fs::create_directories(folder_ / name);
    samples_of(request);
    expect_same(request, samples_of(request));
    const fs::path media = fs::absolute("tests/data/media/sounds");
    EXPECT_EQ(fs::file_size(folder_ / name / "tokens/train/media_bytes.bin"),
              2 * fs::file_size(media / "byte.wav") + fs::file_size(media / "mono.mp3"));
    // As a stream.
    request.data.tokenized_path.reset();
    request.data.buffer_size = 1;
    const auto stream = open_streamed_data(request).train(0);
    std::vector<Sample> streamed;
    while (auto sample = stream->next()) streamed.push_back(*std::move(sample));
    expect_same(request, streamed);
  }
  std::ofstream(folder_ / "dataset_info.json")
      << json{{"one",
               {{"file_name", (tables / "one_sound.parquet").string()},
                {"columns", {{"prompt", "instruction"}, {"response", "output"}, {"audios", "sound"}}}}}}
             .dump();
  DataRequest one = of_table("one");
  one.data.dataset_dir = folder_.path().string();
  const std::vector<Sample> samples = samples_of(one);
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_TRUE(samples[1].row.media.empty());
  EXPECT_TRUE(at::equal(batch_of(one, {samples[0]}).audio_features, batch_of(lines, {files[0]}).audio_features));
}
#endif

// A video given as images, and its sound: both streams in turns, as their times say.
TEST_F(SoundData, SoundOfVideos) {
  std::vector<std::string> frames;
  for (int i = 0; i < 4; ++i) frames.push_back(fs::absolute("tests/data/media/rgb16.png").string());
  json both = record("look <video> <audio>and listen", {"second.wav"});
  both["videos"] = json::array({frames});
  DataRequest request = this->request({both});
  request.media->video_fps = 4;
  request.media->audio_in_video = true;
  const std::vector<Sample> samples = samples_of(request);
  ASSERT_EQ(samples.size(), 1U);
  const Sequence& row = samples[0].row;
  ASSERT_EQ(row.media.size(), 2U);
  const MediaReference &video = row.media[0], &sound = row.media[1];
  EXPECT_EQ(video.kind, MediaKind::kVideo);
  EXPECT_EQ(sound.kind, MediaKind::kSoundOfVideo);
  EXPECT_EQ(video.first, sound.first);
  EXPECT_EQ(video.grid[0], 2);
  EXPECT_EQ(sound.tokens, 13);
  const int32_t sound_pad = *request.tokenizer->id_of(kSoundPad),
                video_pad = *request.tokenizer->id_of("<|video_pad|>");
  const int64_t per_patch = video.tokens / 2;
  // The first patch, sound up to half a second (position 6.5), the second patch, the rest of the sound.
  std::vector<int32_t> expected(static_cast<size_t>(per_patch), video_pad);
  expected.insert(expected.end(), 7, sound_pad);
  expected.insert(expected.end(), static_cast<size_t>(per_patch), video_pad);
  expected.insert(expected.end(), 6, sound_pad);
  const auto begin = row.ids.begin() + video.first;
  EXPECT_EQ(std::vector<int32_t>(begin, begin + std::ssize(expected)), expected);
  EXPECT_EQ(row.ids[static_cast<size_t>(video.first - 1)], *request.tokenizer->id_of(kSoundStart));
  EXPECT_EQ(row.ids[static_cast<size_t>(video.first - 2)], *request.tokenizer->id_of("<|vision_start|>"));
  EXPECT_EQ(*(begin + std::ssize(expected)), *request.tokenizer->id_of(kSoundEnd));
  const MicroBatch batch = batch_of(request, samples);
  const std::vector<int64_t> visual = numbers(batch.visual_rows), heard = numbers(batch.audio_rows);
  for (int64_t i = 0; i < std::ssize(expected); ++i) {
    const auto at = static_cast<size_t>(video.first + i);
    EXPECT_EQ(visual[at] >= 0, expected[static_cast<size_t>(i)] == video_pad);
    EXPECT_EQ(heard[at] >= 0, expected[static_cast<size_t>(i)] == sound_pad);
  }
  EXPECT_EQ(batch.grids.size(0), 1);
  EXPECT_EQ(numbers(batch.audio_lengths), std::vector<int64_t>{100});
  EXPECT_TRUE(batch.layout.has_coordinates());
  // Without the option, the marker stands for a sound of its own.
  request.media->audio_in_video = false;
  const Sample apart = samples_of(request).at(0);
  EXPECT_EQ(apart.row.media[1].kind, MediaKind::kSound);
  EXPECT_GT(apart.row.media[1].first, apart.row.media[0].first + apart.row.media[0].tokens);
  request.media->audio_in_video = true;
  json unpaired = both;
  unpaired["messages"][0]["content"] = "<audio> then <video>";
  DataRequest wrong = this->request({unpaired});
  wrong.media->audio_in_video = true;
  expect_error<DataError>([&] { samples_of(wrong); }, {"sounds.jsonl:1", "follows no <video>"});
}

#ifdef MEGALITH_VIDEO
// A file has both streams itself.
TEST_F(SoundData, SoundInFiles) {
  const std::string clip = fs::absolute("tests/data/media/video/sound.mp4").string(),
                    silent = fs::absolute("tests/data/media/video/clip.mp4").string();
  json seen = record("<video>", json::array()), quiet = seen;
  seen["videos"] = {clip};
  quiet["videos"] = {silent};
  // The same file as bytes in the record.
  std::string held;
  append_base64(io::read_text_file(clip, 1 << 24), held);
  const json bytes{{"bytes", {{"base64", held}}}, {"path", nullptr}};
  json held_video = record("<video>", json::array());
  held_video["videos"] = {bytes};
  DataRequest request =
      this->request({seen, quiet, record("<audio>", {clip}), held_video, record("<audio>", json::array({bytes}))});
  request.media->audio_in_video = true;
  const std::vector<Sample> samples = samples_of(request);
  ASSERT_EQ(samples.size(), 5U);
  ASSERT_EQ(samples[0].row.media.size(), 2U);
  EXPECT_EQ(samples[0].row.media[1].kind, MediaKind::kSoundOfVideo);
  ASSERT_EQ(samples[1].row.media.size(), 1U);
  ASSERT_EQ(samples[2].row.media.size(), 1U);
  EXPECT_EQ(samples[2].row.media[0].kind, MediaKind::kSound);
  EXPECT_EQ(samples[3].row.ids, samples[0].row.ids);
  EXPECT_EQ(samples[4].row.ids, samples[2].row.ids);
  const MicroBatch from_bytes = batch_of(request, {samples[3], samples[4]});
  const MicroBatch batch = batch_of(request, {samples[0], samples[1], samples[2]});
  EXPECT_TRUE(at::equal(from_bytes.audio_features, batch.audio_features));
  EXPECT_TRUE(at::equal(from_bytes.audio_lengths, batch.audio_lengths));
  // 13024 samples at 8000 per second.
  EXPECT_EQ(numbers(batch.audio_lengths), (std::vector<int64_t>{162, 162}));
  EXPECT_TRUE(at::equal(batch.audio_features.narrow(0, 0, 162), batch.audio_features.narrow(0, 162, 162)));
  DataRequest none = this->request({record("<audio>", {silent})});
  expect_error<DataError>([&] { samples_of(none); }, {"clip.mp4: the file has no sound"});
}
#endif

TEST_F(SoundData, WhatDoesNotFitIsNamed) {
  const auto refused = [&](const json& bad, const std::string& part) {
    const DataRequest request = this->request({record("<audio>", {"short.wav"}), bad});
    expect_error<DataError>([&] { samples_of(request); }, {"sounds.jsonl:2", part});
  };
  refused(record("<audio>", {"gone.wav"}), "the sound gone.wav does not exist");
  refused(record("no marker", {"short.wav"}), "the text has 0 markers <audio> and the record 1 sound(s)");
  refused(record("<audio>", json::array()), "the text has 1 marker <audio> and the record 0 sound(s)");
  refused(record("<audio>" + kSoundPad, {"short.wav"}), "holds the placeholder token of a medium itself");
  refused(record("<audio>", 7), "a sound in column");
  // A sound that has become longer since it was tokenized.
  const DataRequest request = this->request({record("<audio>", {"short.wav"})});
  const std::vector<Sample> samples = samples_of(request);
  write_wav(folder_ / "short.wav", {.rate = 22050, .samples = 9'000});
  expect_error<DataError>([&] { batch_of(request, samples); },
                          {"short.wav: the sound has 9000 samples", "tokenize again"});
  DataRequest deaf = this->request({record("<audio>", {"second.wav"})});
  deaf.media->sounds = nullptr;
  expect_error<DataError>([&] { samples_of(deaf); }, {"this run's model takes none"});
}

// A cut ends before the turn that would lose a sound.
TEST_F(SoundData, CutsKeepSoundsWhole) {
  json two = record("<audio>", {"short.wav", "slow.wav"});
  two["messages"].push_back({{"role", "user"}, {"content", "and this <audio>"}});
  two["messages"].push_back({{"role", "assistant"}, {"content", "a bird"}});
  DataRequest request = this->request({two, record("<audio>", {"slow.wav"})});
  request.data.cutoff_len = 36;
  const TokenizedData data = load_tokenized_data(request);
  ASSERT_EQ(data.train->size(), 1);
  EXPECT_EQ(data.train->sample(0).row.media.size(), 1U);
  expect_contains(data.report, "1 records were left out because cutoff_len would cut an image, a video or a sound");
}

}  // namespace
}  // namespace megalith::data
