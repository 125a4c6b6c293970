#include "megalith/run/media/verify_media.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>

#include "megalith/base/error.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"
#include "tests/support/wav.h"

namespace megalith::run {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;
using testing::TempFolder;

const std::string kMedia = "tests/data/media";

void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

// Every record with a fault is named, also by its frames; all others are looked at as well.
TEST(VerifyMedia, NamesEveryRecordWithAFault) {
  const TempFolder folder;
  fs::copy_file(kMedia + "/optimized.jpg", folder / "half.jpg");
  fs::resize_file(folder / "half.jpg", fs::file_size(kMedia + "/optimized.jpg") / 2);
  const auto record = [](const std::string& question, const std::string& media) {
    return fmt::format(R"({{"instruction": "{}", "output": "a", {}}})", question, media) + "\n";
  };
  write(folder / "seen.jsonl", record("<image>", R"("images": ["rgb16.png"], "videos": [])") +
                                   record("<image>", R"("images": ["half.jpg"], "videos": [])") +
                                   record("<video>", R"("images": [], "videos": [["rgb16.png", "gone.png"]])") +
                                   record("<video>", R"("images": [], "videos": [["rgb16.png", "rgb16.png"]])") +
                                   record("<image><image>", R"("images": ["rgb16.png"], "videos": [])") +
                                   record("text alone", R"("images": [], "videos": [])") + "{\n");
  write(folder / "dataset_info.json",
        R"({"seen": {"file_name": "seen.jsonl", "columns": {"prompt": "instruction", "response": "output",
                   "images": "images", "videos": "videos"}}, "read": {"file_name": "seen.jsonl"}})");
  fs::copy_file(kMedia + "/rgb16.png", folder / "rgb16.png");
  const data::RecordSet records(data::find_datasets({"seen", "read"}, folder.path()));
  for (const int threads : {1, 3}) {
    const MediaFindings found = verify_media(records, 0, folder.path(), threads);
    EXPECT_EQ(found.records, 7);
    EXPECT_EQ(found.images, 3);
    EXPECT_EQ(found.videos, 2);
    const std::string file = (folder / "seen.jsonl").string();
    ASSERT_EQ(found.faults.size(), 4U);
    expect_contains(found.faults[0], file + ":2: ");
    expect_contains(found.faults[0], "half.jpg");
    expect_contains(found.faults[1], file + ":3: the frame gone.png does not exist");
    expect_contains(found.faults[2], file + ":5: the text has 2 markers <image> and the record 1 image(s)");
    expect_contains(found.faults[3], file + ":7");
  }
  expect_contains(error_of([&] { verify_media(records, 1, folder.path(), 1); }),
                  "dataset read has no column of images, videos or sounds");
}

// Records with sounds, alone and beside an image.
TEST(VerifyMedia, ListensToSounds) {
  const TempFolder folder;
  testing::write_wav(folder / "bell.wav", {.samples = 4'000});
  testing::write_wav(folder / "half.wav", {.samples = 4'000});
  fs::resize_file(folder / "half.wav", fs::file_size(folder / "half.wav") / 2);
  fs::copy_file(kMedia + "/rgb16.png", folder / "rgb16.png");
  write(folder / "heard.jsonl",
        R"({"instruction": "<audio>", "output": "a", "audios": ["bell.wav"], "images": []})"
        "\n"
        R"({"instruction": "<audio>", "output": "a", "audios": ["half.wav"], "images": []})"
        "\n"
        R"({"instruction": "<image><audio>", "output": "a", "audios": ["bell.wav"], "images": ["rgb16.png"]})"
        "\n"
        R"({"instruction": "<audio>", "output": "a", "audios": ["gone.wav"], "images": []})"
        "\n");
  write(folder / "dataset_info.json",
        R"({"heard": {"file_name": "heard.jsonl", "columns": {"prompt": "instruction", "response": "output",
                   "images": "images", "audios": "audios"}}})");
  const data::RecordSet records(data::find_datasets({"heard"}, folder.path()));
  const MediaFindings found = verify_media(records, 0, folder.path(), 1);
  EXPECT_EQ(found.images, 1);
  EXPECT_EQ(found.sounds, 4);
  ASSERT_EQ(found.faults.size(), 2U) << fmt::format("{}", fmt::join(found.faults, "\n"));
  expect_contains(found.faults[0], "heard.jsonl:2: ");
  expect_contains(found.faults[0], "half.wav");
  expect_contains(found.faults[1], "heard.jsonl:4: the sound gone.wav does not exist");
}

}  // namespace
}  // namespace megalith::run
