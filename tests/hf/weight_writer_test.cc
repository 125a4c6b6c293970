// Writing models in shards: the plan depends only on the list of tensors, and random models that four ranks write in
// rectangles are read back bit for bit.
#include "megalith/hf/weight_writer.h"

#include <ATen/ATen.h>

#include <sys/resource.h>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

#include "megalith/comm/group.h"
#include "megalith/hf/dtype.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_files.h"
#include "megalith/io/json_reader.h"
#include "tests/hf/file_support.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::hf {
namespace {

using testing::expect_contains;

WeightSpec spec_of(const std::string& name, const at::Tensor& tensor) {
  return {name, dtype_of(tensor.scalar_type()), tensor.sizes().vec()};
}

// Bit for bit, also where the values are NaN.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.nbytes() == 0 || std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0);
}

// Writes whole tensors and gives back what lies in the folder.
void write_all(const std::filesystem::path& folder, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
               WeightWriterOptions options = {}) {
  std::vector<WeightSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back(spec_of(name, tensor));
  WeightWriter writer(folder, specs, std::move(options));
  writer.create_files();
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.sync();
  writer.write_index();
}

TEST(WeightWriter, OneFileWithAnAlignedHeader) {
  const TempFolder folder;
  const at::Tensor a = at::randn({3, 5}), b = at::randn({7}).to(at::kBFloat16), scalar = at::tensor(2.5);
  write_all(folder.path(), {{"b", b}, {"a", a}, {"s", scalar}});
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors.index.json"));
  const std::string bytes = file_bytes(folder / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0U);
  EXPECT_EQ(bytes.size(), 8 + length + 60 + 14 + 8);
  expect_contains(bytes.substr(8, length), R"("__metadata__":{"format":"pt"})");
  const SafetensorsFile file(folder / "model.safetensors");
  EXPECT_TRUE(same_bits(file.tensor("a"), a));
  EXPECT_TRUE(same_bits(file.tensor("b"), b));
  EXPECT_TRUE(same_bits(file.tensor("s"), scalar));
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

// The reference library wrote the golden files; for the same list ours are the same, byte by byte.
TEST(WeightWriter, TheOrderIsTheListsButLargerElementsComeFirst) {
  const TempFolder folder;
  write_all(folder.path(), {{"odd", at::ones({3}, at::kByte)},
                            {"z", at::ones({2})},
                            {"half", at::ones({3}, at::kHalf)},
                            {"a", at::ones({2})}});
  const SafetensorsFile file(folder / "model.safetensors");
  std::vector<std::string> names;
  for (const TensorInfo& t : file.tensors()) {
    names.push_back(t.name);
    EXPECT_EQ(t.begin % item_bytes(t.dtype), 0U) << t.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"z", "a", "half", "odd"}));
}

TEST(WeightWriter, ShardsAndIndex) {
  const TempFolder folder;
  const at::Tensor small = at::randn({10}), large = at::randn({100});
  write_all(folder.path(), {{"c", small}, {"b", small}, {"large", large}, {"a", small}}, {.max_shard_bytes = 80});
  const io::JsonFile index = io::read_json_file(folder / "model.safetensors.index.json");
  EXPECT_EQ(
      index.root().dump(),
      R"({"metadata":{"total_size":520},"weight_map":{"a":"model-00003-of-00003.safetensors",)"
      R"("b":"model-00001-of-00003.safetensors","c":"model-00001-of-00003.safetensors","large":"model-00002-of-00003.safetensors"}})");
  const WeightFiles files(folder.path());
  EXPECT_EQ(files.total_bytes(), 520U);
  EXPECT_TRUE(same_bits(files.tensor("large"), large));
  EXPECT_TRUE(same_bits(files.tensor("a"), small));
}

TEST(WeightWriter, EveryDtypeComesBack) {
  const TempFolder folder;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const at::ScalarType type :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kLong, at::kInt,
        at::kShort, at::kChar, at::kByte, at::kBool, at::kUInt16, at::kUInt32, at::kUInt64})
    tensors.emplace_back(c10::toString(type), at::randint(0, 2, {3, 3}).to(type));
  write_all(folder.path(), tensors);
  const WeightFiles files(folder.path());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same_bits(files.tensor(name), tensor)) << name;
}

TEST(WeightWriter, ConvertsWhatIsGiven) {
  const TempFolder folder;
  const at::Tensor wide = at::randn({5, 6}, at::kDouble), grad = at::randn({4}).requires_grad_();
  WeightWriter writer(folder.path(),
                      {{"w", Dtype::kBF16, {5, 6}}, {"t", Dtype::kF32, {6, 5}}, {"g", Dtype::kF32, {4}}});
  writer.create_files();
  writer.write("w", wide);
  writer.write("t", wide.t());  // other strides and another type
  writer.write("g", grad);
  writer.sync();
  const WeightFiles files(folder.path());
  EXPECT_TRUE(same_bits(files.tensor("w"), wide.to(at::kBFloat16)));
  EXPECT_TRUE(same_bits(files.tensor("t"), wide.t().to(at::kFloat)));
  EXPECT_TRUE(same_bits(files.tensor("g"), grad.detach()));
}

// Larger than the buffer, so that it is cut: along the first dimension, and inside a single row.
TEST(WeightWriter, ConvertsInPieces) {
  const TempFolder folder;
  const at::Tensor rows = at::randn({9, 1 << 20}), row = at::randn({1, 1, 9 << 20});
  WeightWriter writer(folder.path(),
                      {{"rows", Dtype::kBF16, {10, (1 << 20) + 3}}, {"row", Dtype::kBF16, {1, 1, 9 << 20}}});
  writer.create_files();
  writer.write("rows", {1, 2}, rows);
  writer.write("row", row);
  writer.sync();
  const WeightFiles files(folder.path());
  EXPECT_TRUE(same_bits(files.tensor("rows").narrow(0, 1, 9).narrow(1, 2, 1 << 20), rows.to(at::kBFloat16)));
  EXPECT_EQ(files.tensor("rows").select(0, 0).count_nonzero().item<int64_t>(), 0);
  EXPECT_TRUE(same_bits(files.tensor("row"), row.to(at::kBFloat16)));
}

struct RandomModel {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::vector<WeightSpec> specs;
};

RandomModel random_model(std::mt19937& rng) {
  RandomModel model;
  const at::ScalarType types[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kByte, at::kBool};
  const size_t count = 1 + rng() % 12;
  for (size_t i = 0; i < count; ++i) {
    std::vector<int64_t> shape;
    for (size_t d = rng() % 5; d > 0; --d) shape.push_back(static_cast<int64_t>(rng() % 7));
    auto generator = at::make_generator<at::CPUGeneratorImpl>(rng());
    const at::Tensor tensor = at::randn(shape, generator).mul(10).to(types[rng() % std::size(types)]);
    model.tensors.emplace_back(fmt::format("t.{}", (i * 7) % count), tensor);
    if (std::gcd(count, size_t{7}) != 1) model.tensors.back().first = fmt::format("t.{}", i);
    model.specs.push_back(spec_of(model.tensors.back().first, tensor));
  }
  return model;
}

// Cuts a box into boxes, one for each rank, along a random dimension.
void write_share(WeightWriter& writer, const std::string& name, const at::Tensor& tensor, int64_t rank, int64_t ranks,
                 std::mt19937& rng) {
  if (tensor.dim() == 0) {
    if (rank == 0) writer.write(name, tensor);
    return;
  }
  const auto dim = static_cast<int64_t>(rng() % static_cast<unsigned>(tensor.dim()));
  const int64_t size = tensor.size(dim), first = size * rank / ranks, last = size * (rank + 1) / ranks;
  std::vector<int64_t> offset(static_cast<size_t>(tensor.dim()), 0);
  offset[static_cast<size_t>(dim)] = first;
  writer.write(name, offset, tensor.narrow(dim, first, last - first));
}

// Any list of tensors, any shard size, four ranks that each write their slices: what is read is what was given.
TEST(WeightWriter, RoundTripOfRandomModelsWrittenByFourRanks) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    const RandomModel model = random_model(rng);
    const TempFolder folder;
    const WeightWriterOptions options{.max_shard_bytes = rng() % 2000};
    testing::run_ranks(4, [&](const testing::Rank& r) {
      std::mt19937 same(seed + 1000);  // all ranks cut along the same dimensions
      const auto group = r.world.world();
      WeightWriter writer(folder.path(), model.specs, options);
      if (r.rank == 0) writer.create_files();
      group.barrier("created");
      for (const auto& [name, tensor] : model.tensors) write_share(writer, name, tensor, r.rank, r.size, same);
      writer.sync();
      group.barrier("written");
      if (r.rank == 3) writer.write_index();
    });
    const WeightFiles files(folder.path());
    EXPECT_EQ(files.names().size(), model.tensors.size());
    for (const auto& [name, tensor] : model.tensors) EXPECT_TRUE(same_bits(files.tensor(name), tensor)) << name;
  }
}

// Blocks of a three-dimensional tensor: runs of every length.
TEST(WeightWriter, EveryBlockOfABox) {
  const at::Tensor full = at::arange(3 * 4 * 5).view({3, 4, 5});
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 4; ++j)
      for (int64_t k = 0; k < 5; ++k) {
        const TempFolder folder;
        WeightWriter writer(folder.path(), {{"w", Dtype::kI64, {3, 4, 5}}});
        writer.create_files();
        // Eight octants around (i, j, k), some of them empty.
        for (int octant = 0; octant < 8; ++octant) {
          const int64_t a = octant & 1 ? i : 0, b = octant & 2 ? j : 0, c = octant & 4 ? k : 0;
          const int64_t a_end = octant & 1 ? 3 : i, b_end = octant & 2 ? 4 : j, c_end = octant & 4 ? 5 : k;
          writer.write("w", {a, b, c}, full.slice(0, a, a_end).slice(1, b, b_end).slice(2, c, c_end));
        }
        writer.sync();
        ASSERT_TRUE(same_bits(SafetensorsFile(folder / "model.safetensors").tensor("w"), full)) << i << j << k;
      }
}

TEST(WeightWriter, RectanglesOutsideAndWrongTypesAreBugs) {
  const TempFolder folder;
  WeightWriter writer(folder.path(), {{"w", Dtype::kF32, {4, 6}}, {"ids", Dtype::kI64, {2}}});
  writer.create_files();
  const at::Tensor box = at::zeros({2, 3});
  for (const std::vector<int64_t>& offset :
       std::vector<std::vector<int64_t>>{{3, 0}, {0, 4}, {-1, 0}, {0}, {0, 0, 0}, {INT64_MAX, 0}}) {
    const std::string message = message_of<InternalError>([&] { writer.write("w", offset, box); });
    expect_contains(message, "tensor w of shape [4,6]");
  }
  EXPECT_THROW(writer.write("w", at::zeros({4, 6}, at::kInt)), InternalError);
  EXPECT_THROW(writer.write("ids", at::zeros({2})), InternalError);
  expect_contains(message_of<InternalError>([&] { writer.write("x", box); }), "tensor x");
}

TEST(WeightWriter, ImpossibleListsAreRefused) {
  const auto plan = [](const std::vector<WeightSpec>& specs) { return [=] { WeightWriter("out", specs); }; };
  expect_contains(
      message_of<ConfigError>(plan({{"a", Dtype::kF32, {1}}, {"b", Dtype::kF32, {1}}, {"a", Dtype::kF32, {2}}})),
      "tensor a");
  expect_contains(message_of<ConfigError>(plan({{"__metadata__", Dtype::kF32, {1}}})), "__metadata__");
  expect_contains(message_of<ConfigError>(plan({{"a", Dtype::kF32, {-1}}})), "shape [-1]");
  expect_contains(message_of<ConfigError>(plan({{"a", Dtype::kF32, {INT64_MAX, 2}}})), "tensor a");
  EXPECT_THROW(dtype_of(at::kComplexFloat), ConfigError);
}

TEST(WeightWriter, PlansDependOnTheListAlone) {
  const TempFolder first, second;
  const std::vector<WeightSpec> specs = {{"a", Dtype::kF32, {100}}, {"b", Dtype::kBF16, {7}}, {"c", Dtype::kF32, {90}}};
  for (const auto* folder : {&first, &second}) {
    const WeightWriter writer(folder->path(), specs, {.max_shard_bytes = 400});
    writer.create_files();
    writer.write_index();
  }
  for (const auto& entry : std::filesystem::directory_iterator(first.path()))
    EXPECT_EQ(file_bytes(entry.path()), file_bytes(second.path() / entry.path().filename()));
}

TEST(WeightWriter, FilesThatCannotBeWrittenAreNamed) {
  const TempFolder folder;
  WeightWriter writer(folder / "absent", {{"a", Dtype::kF32, {1}}});
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { writer.create_files(); }, [&] { writer.write("a", at::zeros({1})); }}) {
    const std::string message = message_of<DataError>(call);
    expect_contains(message, (folder / "absent/model.safetensors").string());
    expect_contains(message, "No such file or directory");
  }
}

}  // namespace
}  // namespace megalith::hf
