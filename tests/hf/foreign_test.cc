// Files of torch.save and torch.distributed.checkpoint, whole, broken and malicious (tests/data/foreign).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/hf/foreign/dcp_folder.h"
#include "megalith/hf/foreign/pickle_reader.h"
#include "megalith/hf/foreign/pickle_value.h"
#include "megalith/hf/foreign/stored_zip.h"
#include "megalith/hf/foreign/torch_file.h"
#include "megalith/hf/weight_files.h"
#include "tests/hf/file_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::hf {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::expect_contains;
using testing::expect_identical;

constexpr const char* kData = "tests/data/foreign";

std::string pickle_error(const std::string& program) {
  return error_of<DataError>([&] { read_pickle(program, "x.pkl"); });
}

// A text of fewer than 256 bytes.
std::string text(const std::string& value) { return "\x8c" + std::string(1, static_cast<char>(value.size())) + value; }

TEST(Pickle, Values) {
  // {"a": [1, -2, 2.5, None, True], "b": ("x", b"y")} with the text in the memo
  const std::string program = std::string("\x80\x04}\x94(", 5) + text("a") + "\x94" +
                              std::string("](K\x01J\xfe\xff\xff\xffG", 10) + std::string("\x40\x04\0\0\0\0\0\0", 8) +
                              "N\x88"
                              "e" +
                              text("b") + text("x") +
                              "C\x01y"
                              "\x86u.";
  const auto pickle = read_pickle(program, "x.pkl");
  const PickleValue* list = pickle->root().find("a");
  ASSERT_TRUE(list && list->is(PickleValue::Kind::kList));
  ASSERT_EQ(list->items.size(), 5U);
  EXPECT_EQ(list->items[0]->integer, 1);
  EXPECT_EQ(list->items[1]->integer, -2);
  EXPECT_EQ(list->items[2]->number, 2.5);
  EXPECT_TRUE(list->items[3]->is(PickleValue::Kind::kNone));
  EXPECT_EQ(list->items[4]->integer, 1);
  EXPECT_EQ(pickle->root().find("b")->at(1)->text, "y");
  EXPECT_EQ(pickle->root().find("c"), nullptr);
}

TEST(Pickle, ObjectsStayDescriptions) {
  // argparse.Namespace() with the state {"tp": 2}
  const auto pickle =
      read_pickle("\x80\x04" + text("argparse") + text("Namespace") + "\x93)\x81}" + text("tp") + "K\x02sb.", "x.pkl");
  EXPECT_TRUE(pickle->root().is_made_by("argparse.Namespace"));
  EXPECT_EQ(pickle->root().find("tp")->integer, 2);
}

TEST(Pickle, CodeIsRefusedByNameAndNotRun) {
  const TempFolder temp;
  const std::string mark = (temp / "mark").string();
  for (const auto& [module, name] :
       {std::pair{"os", "system"}, std::pair{"posix", "system"}, std::pair{"builtins", "eval"},
        std::pair{"subprocess", "Popen"}, std::pair{"runpy", "run_path"}}) {
    const std::string error =
        pickle_error("\x80\x04" + text(module) + text(name) + "\x93" + text("touch " + mark) + "\x85R.");
    expect_contains(error, std::string("x.pkl: the pickle names \"") + module + "." + name + "\"");
    expect_contains(error, "nothing of it has been run");
  }
  const std::string old =
      "\x80\x02"
      "cos\nsystem\n" +
      text("touch " + mark) + "\x85R.";
  expect_contains(pickle_error(old), "os.system");
  EXPECT_FALSE(fs::exists(mark));
}

// torch.save writes protocol 2, in which modules have the names of Python 2; enums may be attributes of their class.
TEST(Pickle, NamesOfPythonTwoAreKnown) {
  for (const char* program : {"\x80\x02"
                              "c__builtin__\nset\n]\x85R.",
                              "\x80\x02"
                              "c__builtin__\nlong\n.",
                              "\x80\x02"
                              "c__builtin__\ngetattr\nctorch\nint8\nU\x01x\x86R."})
    EXPECT_NO_THROW(read_pickle(program, "x.pkl")) << program;
  expect_contains(pickle_error("\x80\x02"
                               "c__builtin__\neval\n."),
                  "eval");
}

TEST(Pickle, DamageIsNamed) {
  expect_contains(pickle_error(""), "x.pkl: not a pickle that torch writes: 1 bytes are needed where 0 are left");
  expect_contains(pickle_error("\x80\x04."), "0 values on the stack");
  expect_contains(pickle_error("\x80\x04h\x05."), "memo 5 is used before it is set");
  expect_contains(pickle_error("\x80\x04R."), "an instruction without its value");
  expect_contains(pickle_error("\x80\x04K\x01K\x02R."), "something is called that is not a class or function");
  expect_contains(pickle_error(std::string("\x80\x04\x8d\0\0\0\0\0\0\0\x40", 11) + "abc."),
                  "4611686018427387904 bytes are needed");
  expect_contains(pickle_error("\x80\x04" + std::string(kDeepestPickle + 1, '(') + "."), "more than 1000 marks");
  expect_contains(pickle_error("\x80\x04\xff."), "instruction 0xff");
  expect_contains(pickle_error(std::string("\x80\0.", 3)), "protocol 0");
}

// The first file of the ranks of a Megatron checkpoint.
fs::path rank_file() { return fs::path(kData) / "qwen2_ranks/iter_0000003/mp_rank_00_000/model_optim_rng.pt"; }

TEST(TorchFile, TensorsAreViewsOfTheFile) {
  const TorchFile file(rank_file());
  const PickleValue* model = file.root().find("model");
  ASSERT_TRUE(model && model->is_dict());
  const auto described = file.describe(*model->find("decoder.layers.0.input_layernorm.weight"));
  ASSERT_TRUE(described.has_value());
  EXPECT_EQ(described->shape, (std::vector<int64_t>{16}));
  const WeightFiles original(fs::path(kData) / "qwen2");
  expect_identical(file.tensor(*described), original.tensor("model.layers.0.input_layernorm.weight"), "norm");
  EXPECT_EQ(file.root().find("args")->find("tensor_model_parallel_size")->integer, 2);
  EXPECT_FALSE(file.describe(*file.root().find("args")).has_value());
}

TEST(TorchFile, DamageIsNamed) {
  const TempFolder temp;
  const std::string whole = file_bytes(rank_file());
  const auto error = [&](const std::string& bytes) {
    put_file(temp / "a.pt", bytes);
    return error_of<DataError>([&] { const TorchFile file(temp / "a.pt"); });
  };
  EXPECT_EQ(error(whole), "");
  for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{100}})
    expect_contains(error(whole.substr(0, size)), "a.pt: not a zip archive that torch writes");
  expect_contains(error("\x80\x02}."), "since 1.6");
  std::string other = whole;
  other.replace(other.find("data.pkl"), 8, "data.pkx");
  other.replace(other.rfind("data.pkl"), 8, "data.pkx");
  expect_contains(error(other), "has no member \"data.pkl\"");
}

TEST(StoredZip, MembersLieInTheArchive) {
  const std::string archive = file_bytes(rank_file());
  const StoredZip zip(archive, "x.pt");
  EXPECT_TRUE(is_zip(archive));
  EXPECT_EQ(zip.content("byteorder"), "little");
  EXPECT_TRUE(zip.members().contains("data.pkl"));
  expect_contains(error_of<DataError>([&] { zip.content("data/9999"); }), "x.pt: the archive has no member");
}

TEST(DcpFolder, EveryTensorIsThere) {
  const DcpFolder dcp(fs::path(kData) / "qwen2_dcp");
  const WeightFiles original(fs::path(kData) / "qwen2");
  for (const std::string& name : original.names())
    expect_identical(dcp.read("model." + name), original.tensor(name), name);
  const auto rows = [](const at::Tensor& of) { return of.narrow(0, 3, 4).narrow(1, 2, 5); };
  const std::string name = "model.layers.0.mlp.gate_proj.weight";
  expect_identical(dcp.read("model." + name, {3, 2}, {4, 5}), rows(original.tensor(name)).contiguous(), "rectangle");
}

// Copies a folder with its hidden files.
void copy_folder(const fs::path& from, const fs::path& to) { fs::copy(from, to, fs::copy_options::recursive); }

TEST(DcpFolder, MissingAndShortFilesAreNamed) {
  const TempFolder temp;
  copy_folder(fs::path(kData) / "qwen2_dcp", temp / "short");
  const fs::path shard = temp / "short/__0_0.distcp";
  ASSERT_TRUE(fs::exists(shard));
  const auto error = [&] { return error_of<DataError>([&] { const DcpFolder dcp(temp / "short"); }); };
  EXPECT_EQ(error(), "");
  fs::resize_file(shard, fs::file_size(shard) / 2);
  expect_contains(error(), "__0_0.distcp has ");
  fs::remove(shard);
  expect_contains(error(), "__0_0.distcp is missing");
  const std::string metadata = file_bytes(temp / "short/.metadata");
  put_file(temp / "short/.metadata", metadata.substr(0, metadata.size() / 2));
  expect_contains(error(), ".metadata: not a pickle that torch writes");
}

}  // namespace
}  // namespace megalith::hf
