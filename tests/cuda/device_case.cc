#include "tests/cuda/device_case.h"

#include <ATen/Context.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "megalith/base/error.h"
#include "tests/cuda/device_model.h"
#include "tests/cuda/device_sight.h"

namespace megalith::testing {

namespace {

constexpr int kSteps = 3, kSamples = 8;

}  // namespace

std::optional<TestDevice> test_device() {
  const char* wish = std::getenv("MEGALITH_CUDA_TESTS");
  if (wish != nullptr && std::string_view(wish) == "cpu") return TestDevice::kCpu;
  if (at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0) return TestDevice::kCuda;
  return std::nullopt;
}

bool DeviceCase::adapter() const { return std::ranges::find(run, "--finetuning_type=lora") != run.end(); }

DeviceModel::DeviceModel(const std::string& family) : family_(family) { write_device_model(family, folder_.path()); }

Words DeviceModel::command(const DeviceCase& how, const std::string& output) const {
  Words words{MEGALITH_PROGRAM,
              "train",
              "--model_name_or_path=" + folder_.path().string(),
              "--dataset=" + (folder_ / "data.jsonl").string(),
              "--output_dir=" + output,
              fmt::format("--cutoff_len={}", kDeviceRow),
              fmt::format("--max_steps={}", kSteps),
              "--learning_rate=0.05",
              "--lr_scheduler_type=constant",
              "--optim=sgd",
              "--sgd_momentum=0",
              "--weight_decay=0",
              "--max_grad_norm=0",
              "--calculate_per_token_loss",
              "--logging_steps=1",
              "--save_strategy=no",
              "--ddp_timeout=30"};  // ranks that wait for one another say so
  if (!how.adapter()) words.emplace_back("--finetuning_type=full");
  const Words seen = sight_words(family_, folder_.path());
  words.insert(words.end(), seen.begin(), seen.end());
  if (how.bf16) words.emplace_back("--bf16");
  words.insert(words.end(), how.run.begin(), how.run.end());
  return words;
}

DeviceRun DeviceModel::execute(const Words& words, const std::filesystem::path& output) const {
  const std::map<std::string, std::string> env{{"XDG_CACHE_HOME", (folder_ / "cache").string()},
                                               {"OMP_NUM_THREADS", "1"}};
  const ProcessResult result = run_process(words, env, std::chrono::seconds(110));
  check(result.exit_code == 0, "{} ended with {}:\n{}", fmt::join(words, " "), result.exit_code, result.err);
  return read_run(output);
}

DeviceRun DeviceModel::reference(const DeviceCase& how) const {
  Words words = command(how, (folder_ / "reference").string());
  words.insert(words.end(), {"--use_cpu", "--per_device_train_batch_size=4", "--gradient_accumulation_steps=2"});
  return execute(words, folder_ / "reference");
}

DeviceRun DeviceModel::run(const DeviceCase& how, TestDevice device) const {
  const int microbatches = how.pp > 1 ? 4 : 2;
  Words words = command(how, (folder_ / "out").string());
  words.insert(words.end(),
               {fmt::format("--nproc={}", how.ranks()), "--ddp_backend=gloo", fmt::format("--tp={}", how.tp),
                fmt::format("--pp={}", how.pp), fmt::format("--cp={}", how.cp),
                fmt::format("--per_device_train_batch_size={}", kSamples / how.dp / microbatches),
                fmt::format("--gradient_accumulation_steps={}", microbatches)});
  if (device == TestDevice::kCpu) words.emplace_back("--use_cpu");
  words.insert(words.end(), how.layout.begin(), how.layout.end());
  return execute(words, folder_ / "out");
}

void expect_same_run(const DeviceCase& how, const DeviceRun& actual, const DeviceRun& expected) {
  ASSERT_EQ(expected.losses.size(), size_t{kSteps});
  ASSERT_FALSE(expected.tensors.empty());
  const RunDifference found = difference_of(actual, expected, kSteps, how.bf16);
  fmt::print("{}: loss {:.1e}, gradient norm {:.1e}, exported tensors {:.1e} ({})\n", how.name, found.loss, found.norm,
             found.tensors, found.where);
  EXPECT_EQ(actual.tensors.size(), expected.tensors.size());
  // bf16 keeps 8 bits of each number; sums over ranks are rounded in between. An exported number differs by a few of
  // its last places; those of an adapter, which began with zero, are sums of such differences alone.
  const double tensors = !how.bf16 ? 1e-5 : how.adapter() ? 1e-1 : 2e-2;
  EXPECT_LE(found.loss, how.bf16 ? 5e-3 : 1e-5) << how.name << ": loss";
  EXPECT_LE(found.norm, how.bf16 ? 5e-2 : 1e-5) << how.name << ": gradient norm";
  EXPECT_LE(found.tensors, tensors) << how.name << ": " << found.where;
}

}  // namespace megalith::testing
