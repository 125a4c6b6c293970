// The reference model against the numbers of Hugging Face's library: so that everything else can be compared with it.
//
// Tolerance: 1e-5 of a tensor's largest value, or the noise that the golden file records (the difference between two
// equivalent attention kernels of the library itself) where that is larger: gradients that are almost zero in theory,
// such as those of key biases, are nothing but noise. 2e-5 for gradients of models with linear attention: a recurrence
// rounds in other places.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/close.h"
#include "tests/support/golden.h"
#include "tests/support/golden_model.h"
#include "tests/support/reference_model.h"

namespace megalith::testing {
namespace {

class GoldenHfReference : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string type = golden_model_type(GetParam());
    if (!ReferenceConfig::supports(type)) GTEST_SKIP() << GetParam() << ": the reference model has no family " << type;
    at::set_num_threads(1);  // tiny tensors
    golden_ = read_golden_model(GetParam());
    if (ReferenceModel::from_folder(golden_.folder).config().delta_net) tolerance_ = 2 * kClose;
  }

  GoldenModel golden_;
  double tolerance_ = kClose;
};

// Loss: one mean over all labelled tokens.
at::Tensor mean_loss(const at::Tensor& token_losses, int64_t count) {
  return token_losses.sum() / static_cast<double>(count);
}

TEST_P(GoldenHfReference, forward) {
  const auto model = ReferenceModel::from_folder(golden_.folder);
  const ReferenceOutput out = model.forward(golden_.input_ids);
  expect_close(out.logits[0], golden_.logits, "logits", kClose, golden_.logits_noise);
  if (golden_.hidden_states.defined()) {
    std::vector<at::Tensor> hidden;
    for (const at::Tensor& x : out.hidden_states) hidden.push_back(x[0].slice(0, 0, golden_.hidden_states.size(1)));
    expect_close(at::stack(hidden), golden_.hidden_states, "hidden states");
  }
  const at::Tensor losses = reference_token_losses(out.logits, golden_.labels);
  expect_close(losses, golden_.token_losses, "token losses");
  ASSERT_EQ(reference_label_count(golden_.labels), golden_.num_label_tokens);
  expect_close(mean_loss(losses, golden_.num_label_tokens).item<double>(), golden_.loss, "loss");
}

TEST_P(GoldenHfReference, gradients) {
  const auto model = ReferenceModel::from_folder(golden_.folder);
  const at::Tensor losses = reference_token_losses(model.forward(golden_.input_ids).logits, golden_.labels);
  mean_loss(losses, golden_.num_label_tokens).backward();
  ASSERT_EQ(golden_.gradients.size(), model.parameters().size());
  for (const GoldenModel::Gradient& expected : golden_.gradients) {
    SCOPED_TRACE(expected.name);
    const at::Tensor grad = model.grad(expected.name).to(at::kDouble);
    ASSERT_EQ(grad.sizes(), at::IntArrayRef(expected.shape));
    // Samples may all be small: the whole tensor's largest value is the measure.
    const double allowed = std::max(tolerance_ * expected.absmax, expected.noise);
    expect_close(golden_sample(grad), expected.samples, "samples", 0, allowed);
    expect_close(grad.norm().item<double>(), expected.l2, "l2", kClose, allowed);
    expect_close(grad.abs().max().item<double>(), expected.absmax, "absmax", kClose, allowed);
    // The sum of a matrix may be zero in theory, its elements are not.
    const double elements = std::sqrt(static_cast<double>(grad.numel()));
    expect_close(grad.sum().item<double>(), expected.sum, "sum", kClose, allowed * elements);
  }
  expect_close(model.grad_norm(), golden_.grad_norm, "grad norm");
}

TEST_P(GoldenHfReference, packed) {
  const auto model = ReferenceModel::from_folder(golden_.folder);
  const GoldenModel::Packed& packed = golden_.packed_row();
  ASSERT_EQ(reference_label_count(packed.labels, packed.cu_seqlens), packed.num_label_tokens);
  for (const at::Tensor& positions : {packed.position_ids, at::Tensor()}) {
    model.zero_grad();
    const auto out = model.forward(packed.input_ids, {.position_ids = positions, .cu_seqlens = packed.cu_seqlens});
    const at::Tensor losses = reference_token_losses(out.logits, packed.labels, packed.cu_seqlens);
    expect_close(losses, packed.token_losses, "token losses");
    const at::Tensor loss = mean_loss(losses, packed.num_label_tokens);
    expect_close(loss.item<double>(), packed.loss, "loss");
    loss.backward();
    expect_close(model.grad_norm(), packed.grad_norm, "grad norm");
    for (const GoldenModel::Gradient& expected : golden_.gradients)
      if (expected.packed_l2)
        expect_close(model.grad(expected.name).to(at::kDouble).norm().item<double>(), *expected.packed_l2,
                     expected.name, kClose, expected.noise);
  }
}

// Both spellings of config.json say the same.
TEST_P(GoldenHfReference, classic_config) {
  if (!std::filesystem::exists(golden_.folder / "config_classic.json")) return;
  const auto read = [&](const char* name) {
    std::ifstream text(golden_.folder / name);
    return ReferenceConfig::from_json(nlohmann::json::parse(text));
  };
  EXPECT_EQ(read("config_classic.json"), read("config.json"));
}

INSTANTIATE_TEST_SUITE_P(, GoldenHfReference, ::testing::ValuesIn(golden_or_none(golden_model_names())),
                         golden_test_name<::testing::TestParamInfo<std::string>>);

// random() and save() write a folder that from_folder() takes, for every family.
TEST(ReferenceModel, SavedFoldersAreReadAgain) {
  for (const std::string& family : ReferenceConfig::families()) {
    SCOPED_TRACE(family);
    auto config = ReferenceConfig::of_family(family);
    if (config.model_type == "mistral") config.windows = {3, 3};
    if (config.model_type == "qwen2") config.windows = {0, 3};
    if (config.model_type == "llama") config.rope = {.type = "llama3", .factor = 4, .original_positions = 16};
    const auto model = ReferenceModel::random(config, 1);
    std::string folder = (std::filesystem::temp_directory_path() / "megalith-reference-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    model.save(folder);
    const auto again = ReferenceModel::from_folder(folder);
    std::filesystem::remove_all(folder);
    EXPECT_EQ(again.config(), config);
    const at::Tensor ids = at::arange(20, at::kLong).view({2, 10});
    expect_identical(again.forward(ids).logits, model.forward(ids).logits, "logits");
  }
}

}  // namespace
}  // namespace megalith::testing
