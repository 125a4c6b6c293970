// Mapped safetensors files: views of the right bytes that outlive the file object, and refusals of files that are cut
// or damaged at any byte.
#include "megalith/hf/safetensors_file.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>

#include "megalith/hf/weight_writer.h"
#include "tests/hf/file_support.h"
#include "tests/support/expect.h"

namespace megalith::hf {
namespace {

using testing::expect_contains;

const std::string kHeader =
    R"({"b":{"dtype":"I32","shape":[2,2],"data_offsets":[8,24]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

std::string data_of(const std::vector<at::Tensor>& tensors) {
  std::string bytes;
  for (const at::Tensor& tensor : tensors) bytes.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  return bytes;
}

struct Fixture {
  TempFolder folder;
  at::Tensor a = at::tensor({1.5F, -2.0F});
  at::Tensor b = at::arange(4, at::kInt).view({2, 2});
  std::filesystem::path path;

  // With `padding` spaces after the header.
  explicit Fixture(size_t padding = 0) {
    path =
        put_file(folder / "model.safetensors", safetensors_bytes(kHeader + std::string(padding, ' '), data_of({a, b})));
  }
};

std::string refusal(const std::string& bytes) {
  const TempFolder folder;
  const auto path = put_file(folder / "broken.safetensors", bytes);
  const std::string message = message_of<DataError>([&] { const SafetensorsFile file(path); });
  expect_contains(message, path.string());
  return message;
}

TEST(SafetensorsFile, TensorsAreViewsOfTheFile) {
  const Fixture f((8 - kHeader.size() % 8) % 8);
  const SafetensorsFile file(f.path);
  EXPECT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.find("b")->shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_TRUE(at::equal(file.tensor("a"), f.a));
  EXPECT_TRUE(at::equal(file.tensor("b"), f.b));
  EXPECT_EQ(file.tensor("a").data_ptr(), file.tensor("a").data_ptr());
}

TEST(SafetensorsFile, ViewsOutliveTheFileObject) {
  const Fixture f;
  std::optional<SafetensorsFile> file(f.path);
  const at::Tensor a = file->tensor("a"), b = file->tensor("b");
  file.reset();
  std::filesystem::remove(f.path);
  EXPECT_TRUE(at::equal(a, f.a));
  EXPECT_TRUE(at::equal(b, f.b));
}

// Writers before padding: the data begins at any byte.
TEST(SafetensorsFile, UnalignedTensorsAreCopied) {
  for (size_t padding = 0; padding < 8; ++padding) {
    const Fixture f(padding);
    const SafetensorsFile file(f.path);
    EXPECT_TRUE(at::equal(file.tensor("a"), f.a)) << padding;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensor("b").data_ptr()) % 4, 0U);
    EXPECT_TRUE(at::equal(file.tensor("b"), f.b)) << padding;
  }
}

TEST(SafetensorsFile, EmptyTensorsAndFilesWithoutTensors) {
  const TempFolder folder;
  const SafetensorsFile none(put_file(folder / "none", safetensors_bytes("{}", "")));
  EXPECT_TRUE(none.tensors().empty());
  const SafetensorsFile empty(
      put_file(folder / "e", safetensors_bytes(R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}})", "")));
  EXPECT_EQ(empty.tensor("e").sizes(), at::IntArrayRef({0, 3}));
  empty.release("e");
}

TEST(SafetensorsFile, AnUnknownNameIsADataError) {
  const Fixture f;
  const SafetensorsFile file(f.path);
  const std::string message = message_of<DataError>([&] { file.tensor("lm_head.weight"); });
  expect_contains(message, "\"lm_head.weight\"");
  expect_contains(message, f.path.string());
}

// Every prefix of a good file is refused, and says so.
TEST(SafetensorsFile, TruncatedAtAnyByte) {
  const Fixture f;
  const std::string bytes = file_bytes(f.path);
  for (size_t length = 0; length < bytes.size(); ++length) {
    SCOPED_TRACE(length);
    const std::string message = refusal(bytes.substr(0, length));
    expect_contains(message, "download it again");
    expect_contains(message, std::to_string(length));
  }
}

TEST(SafetensorsFile, AWrongHeaderLengthIsRefused) {
  for (const int64_t length : {int64_t{1} << 62, int64_t{100'000'001}, static_cast<int64_t>(kHeader.size()) + 25}) {
    const std::string message = refusal(safetensors_bytes(kHeader, std::string(24, 'x'), length));
    expect_contains(message, fmt::format("promise a header of {} bytes", length));
  }
  // Within the file, but wrong: the JSON is cut, or runs into the data.
  expect_contains(refusal(safetensors_bytes(kHeader, std::string(24, 'x'), static_cast<int64_t>(kHeader.size()) - 1)),
                  "not valid JSON");
  expect_contains(refusal(safetensors_bytes(kHeader, std::string(24, 'x'), static_cast<int64_t>(kHeader.size()) + 3)),
                  "not valid JSON");
  expect_contains(refusal(safetensors_bytes(kHeader, std::string(24, 'x'), 0)), "does not begin with '{'");
  std::string all_ones = safetensors_bytes(kHeader, "");
  all_ones.replace(0, 8, std::string(8, '\xff'));
  expect_contains(refusal(all_ones), "18446744073709551615");
}

TEST(SafetensorsFile, GuessesWhatTheFileIs) {
  expect_contains(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"), "git lfs pull");
  expect_contains(refusal("PK\x03\x04" + std::string(64, 'x')), "pickle");
  expect_contains(refusal("<!doctype html><html></html>"), "web page");
}

TEST(SafetensorsFile, FilesThatCannotBeRead) {
  const TempFolder folder;
  expect_contains(message_of<DataError>([&] { const SafetensorsFile file(folder / "absent"); }), "No such file");
  expect_contains(message_of<DataError>([&] { const SafetensorsFile file(folder.path()); }),
                  "a folder, a pipe or a device");
}

// Bytes of the mapping of `path` that are in this process's memory.
size_t resident_bytes(const std::filesystem::path& path) {
  std::ifstream maps("/proc/self/smaps");
  size_t kilobytes = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.find(path.string()) != std::string::npos;
    if (inside && line.rfind("Rss:", 0) == 0) kilobytes += std::stoul(line.substr(4));
  }
  return kilobytes * 1024;
}

TEST(SafetensorsFile, ReleasedPagesLeaveTheProcess) {
  const TempFolder folder;
  constexpr int64_t kBytes = 8 << 20;
  WeightWriter writer(folder.path(), {{"a", Dtype::kU8, {kBytes}}, {"b", Dtype::kU8, {kBytes}}});
  writer.create_files();
  writer.write("a", at::full({kBytes}, 3, at::kByte));
  writer.write("b", at::full({kBytes}, 5, at::kByte));
  writer.sync();
  const SafetensorsFile file(folder / "model.safetensors");
  const at::Tensor a = file.tensor("a"), b = file.tensor("b");
  EXPECT_EQ(a.sum().item<int64_t>() + b.sum().item<int64_t>(), 8 * kBytes);
  EXPECT_GE(resident_bytes(file.path()), 2 * kBytes);
  file.release("a");
  EXPECT_LT(resident_bytes(file.path()), kBytes + (1 << 20));
  EXPECT_GE(resident_bytes(file.path()), kBytes);  // b stays
  EXPECT_EQ(a.sum().item<int64_t>(), 3 * kBytes);  // and a is still there
}

}  // namespace
}  // namespace megalith::hf
