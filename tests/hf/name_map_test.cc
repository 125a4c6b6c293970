// Rules of a NameMap: where tensors of ours lie in those of the files, read and written in rectangles.
#include "megalith/hf/name_map.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_writer.h"
#include "tests/hf/file_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::hf {
namespace {

using testing::expect_contains;
using testing::expect_identical;

using Tensors = std::map<std::string, at::Tensor>;

// Writes tensors as the only file of a folder.
void write_folder(const std::filesystem::path& folder, const Tensors& tensors) {
  std::vector<WeightSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  WeightWriter writer(folder, specs);
  writer.create_files();
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.sync();
}

std::vector<GlobalTensor> global(const Tensors& ours) {
  std::vector<GlobalTensor> tensors;
  for (const auto& [name, tensor] : ours) tensors.push_back({name, tensor.sizes().vec()});
  return tensors;
}

// Cuts a tensor into rectangles of at most two rows and three columns, as ranks might hold them.
std::vector<parallel::ShardedTensor> cut(const std::string& name, const at::Tensor& whole) {
  std::vector<parallel::ShardedTensor> parts;
  for (int64_t row = 0; row < whole.size(0); row += 2)
    for (int64_t column = 0; column < whole.size(1); column += 3)
      parts.push_back({name,
                       whole.sizes().vec(),
                       {row, column},
                       whole.narrow(0, row, std::min<int64_t>(2, whole.size(0) - row))
                           .narrow(1, column, std::min<int64_t>(3, whole.size(1) - column))});
  return parts;
}

// Reads what the files hold into zeros, rectangle by rectangle, and writes it again from rectangles.
void expect_both_ways(const NameMap& map, const Tensors& ours, const Tensors& theirs) {
  const TempFolder folder, again;
  write_folder(folder.path(), theirs);
  const WeightFiles files(folder.path());
  const TensorMapping mapping(map, global(ours));
  mapping.check_files(files);
  std::vector<WeightSpec> specs;
  for (const FileTensor& file : mapping.files()) specs.push_back({file.name, Dtype::kF32, file.shape});
  WeightWriter writer(again.path(), specs);
  writer.create_files();
  for (const auto& [name, tensor] : ours) {
    const at::Tensor read = at::zeros_like(tensor);
    mapping.read(files, cut(name, read));
    expect_identical(read, tensor, name);
    for (const parallel::ShardedTensor& part : cut(name, read)) {
      const auto place = mapping.place(part);
      writer.write(place.file->name, place.offset, place.data);
    }
  }
  writer.sync();
  const WeightFiles written(again.path());
  ASSERT_EQ(written.names(), files.names());
  for (const std::string& name : files.names()) expect_identical(written.tensor(name), files.tensor(name), name);
}

// Three experts with gate and up [4, 5] and down [5, 4] in two layers.
Tensors experts() {
  Tensors ours;
  for (int layer = 0; layer < 2; ++layer)
    for (int expert = 0; expert < 3; ++expert) {
      const std::string prefix = fmt::format("layers.{}.mlp.experts.{}.", layer, expert);
      ours[prefix + "gate.weight"] = at::randn({4, 5});
      ours[prefix + "up.weight"] = at::randn({4, 5});
      ours[prefix + "down.weight"] = at::randn({5, 4});
    }
  return ours;
}

NameMap stacked_names(bool transposed) {
  const std::string theirs = "m.layers.{}.mlp.experts.", ours = "layers.{}.mlp.experts.{}.";
  return {.rules = {{.theirs = theirs + "gate_up_proj",
                     .ours = {ours + "gate.weight", ours + "up.weight"},
                     .transposed = transposed,
                     .stacked = true},
                    {.theirs = theirs + "down_proj",
                     .ours = {ours + "down.weight"},
                     .transposed = transposed,
                     .stacked = true}},
          .ignored = {}};
}

// The files of experts(), put together by ATen.
Tensors stacked(const Tensors& ours, bool transposed) {
  Tensors theirs;
  for (int layer = 0; layer < 2; ++layer) {
    std::vector<at::Tensor> gate_up, down;
    for (int expert = 0; expert < 3; ++expert) {
      const auto of = [&](const char* name) {
        return ours.at(fmt::format("layers.{}.mlp.experts.{}.{}.weight", layer, expert, name));
      };
      gate_up.push_back(at::cat({of("gate"), of("up")}));
      down.push_back(of("down"));
      if (!transposed) continue;
      gate_up.back() = gate_up.back().t();
      down.back() = down.back().t();
    }
    theirs[fmt::format("m.layers.{}.mlp.experts.gate_up_proj", layer)] = at::stack(gate_up);
    theirs[fmt::format("m.layers.{}.mlp.experts.down_proj", layer)] = at::stack(down);
  }
  return theirs;
}

TEST(NameMap, StackedExperts) {
  const Tensors ours = experts(), theirs = stacked(ours, false);
  EXPECT_EQ(theirs.at("m.layers.1.mlp.experts.gate_up_proj").sizes(), (std::vector<int64_t>{3, 8, 5}));
  expect_both_ways(stacked_names(false), ours, theirs);
}

TEST(NameMap, StackedAndTransposedExperts) {
  const Tensors ours = experts(), theirs = stacked(ours, true);
  EXPECT_EQ(theirs.at("m.layers.1.mlp.experts.gate_up_proj").sizes(), (std::vector<int64_t>{3, 5, 8}));
  expect_both_ways(stacked_names(true), ours, theirs);
}

// Numbers of experts are numbers, not words in alphabetical order.
TEST(NameMap, MoreThanTenStackedExperts) {
  Tensors ours;
  std::vector<at::Tensor> all;
  for (int expert = 0; expert < 12; ++expert) {
    all.push_back(at::randn({2, 3}));
    ours[fmt::format("e.{}.w", expert)] = all.back();
  }
  expect_both_ways({.rules = {{.theirs = "e.w", .ours = {"e.{}.w"}, .stacked = true}}, .ignored = {}}, ours,
                   {{"e.w", at::stack(all)}});
}

TEST(NameMap, AStackOfAnotherNumberOfExpertsIsNamed) {
  Tensors ours = experts();
  const TempFolder folder;
  write_folder(folder.path(), stacked(ours, false));
  for (const char* name : {"gate", "up", "down"})
    ours.erase(fmt::format("layers.1.mlp.experts.2.{}.weight", name));  // the model has two in this layer
  const TensorMapping mapping(stacked_names(false), global(ours));
  expect_contains(message_of<DataError>([&] { mapping.check_files(WeightFiles(folder.path())); }),
                  "m.layers.1.mlp.experts.gate_up_proj: [3, 8, 5] in the file, [2, 8, 5] in the model");
}

// Parts of a row, which are not rectangles of the kernel itself, are written as well.
TEST(NameMap, KernelsAreMatrices) {
  const at::Tensor kernel = at::randn({5, 3, 2, 2, 2});
  const NameMap map{.rules = {{.theirs = "patch.weight", .ours = {"patch.weight"}, .kernel = {3, 2, 2, 2}}},
                    .ignored = {}};
  expect_both_ways(map, {{"patch.weight", kernel.flatten(1)}}, {{"patch.weight", kernel}});
}

TEST(NameMap, CarriedTensorsAreNeitherExpectedNorUnexpected) {
  const TempFolder folder;
  const at::Tensor x = at::randn({2, 2});
  write_folder(folder.path(), {{"a", x}, {"tower.1", x}, {"tower.2", x}, {"other", x}, {"buffer", x}});
  NameMap map{.rules = {{"a", {"a"}}}, .ignored = {"buffer"}, .carried = {"tower.*"}};
  const WeightFiles files(folder.path());
  const TensorMapping mapping(map, {{"a", {2, 2}}});
  EXPECT_EQ(mapping.carried_in(files), (std::vector<std::string>{"tower.1", "tower.2"}));
  EXPECT_EQ(mapping.unexpected_in(files), std::vector<std::string>{"other"});
  // A tensor with a rule of its own is part of the model.
  map.rules.push_back({"tower.1", {"t"}});
  const TensorMapping with_tower(map, {{"a", {2, 2}}, {"t", {2, 2}}});
  EXPECT_EQ(with_tower.carried_in(files), std::vector<std::string>{"tower.2"});
}

}  // namespace
}  // namespace megalith::hf
