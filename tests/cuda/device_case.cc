#include "tests/cuda/device_case.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/hf/safetensors_file.h"
#include "tests/parity/parity_point.h"
#include "tests/support/reference_model.h"

namespace megalith::testing {

namespace {

using nlohmann::json;

constexpr int kSteps = 3, kSamples = 8, kSequences = 96, kRow = 32;
constexpr double kSmallestMargin = 3e-5;  // of a choice of experts: far above what fp32 makes of it

// Sizes that tp 4 and pp 4 can split and that the kernels for 16-bit heads take.
ReferenceConfig config_of(const std::string& family) {
  ReferenceConfig config = parity_config(family);
  config.num_layers = 4;
  config.hidden_size = config.is_gpt2() ? 128 : 64;
  if (config.is_gpt2()) config.intermediate_size = 4 * config.hidden_size;
  if (!config.latent) config.head_dim = 16;
  if (!config.windows.empty()) config.windows.assign(4, 6);
  return config;
}

// Gentle layers, so that rounding does not grow from layer to layer.
ReferenceModel make_model(const ReferenceConfig& config, uint64_t seed) {
  ReferenceModel model = ReferenceModel::random(config, seed);
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : model.parameters())
    if (parameter.dim() == 2) parameter.mul_(0.5);
  return model;
}

double smallest_margin(const ReferenceModel& model, const std::vector<data::Sequence>& samples) {
  const at::NoGradGuard no_grad;
  double margin = std::numeric_limits<double>::infinity();
  for (const data::Sequence& s : samples)
    margin = std::min(
        margin, model.forward(at::tensor(std::vector<int64_t>(s.ids.begin(), s.ids.end())).unsqueeze(0)).router_margin);
  return margin;
}

std::vector<double> numbers(const std::filesystem::path& metrics, const std::string& name) {
  std::vector<double> found;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);)
    if (const json parsed = json::parse(line); parsed.contains("loss") && parsed.contains(name))
      found.push_back(parsed.at(name).get<double>());
  return found;
}

double difference(double actual, double expected) { return std::abs(actual - expected) / std::abs(expected); }

double largest_difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  double worst = actual.size() == expected.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i)
    worst = std::max(worst, std::isfinite(actual[i]) ? difference(actual[i], expected[i]) : INFINITY);
  return worst;
}

// max|a-b| / max|b|
double difference(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return INFINITY;
  const double error = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  const double size = expected.abs().max().item<double>();
  return std::isfinite(error) ? (size > 0 ? error / size : error) : INFINITY;
}

}  // namespace

std::optional<TestDevice> test_device() {
  const char* wish = std::getenv("MEGALITH_CUDA_TESTS");
  if (wish != nullptr && std::string_view(wish) == "cpu") return TestDevice::kCpu;
  if (at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0) return TestDevice::kCuda;
  return std::nullopt;
}

bool DeviceCase::adapter() const { return std::ranges::find(run, "--finetuning_type=lora") != run.end(); }

DeviceModel::DeviceModel(const std::string& family) {
  at::set_num_threads(1);  // tiny products, and often a machine full of other tests
  const ReferenceConfig config = config_of(family);
  const std::vector<data::Sequence> samples = random_sequences(kSequences, config.vocab_size, 5);
  uint64_t seed = 1;
  ReferenceModel model = make_model(config, seed);
  while (config.experts && smallest_margin(model, samples) < kSmallestMargin) {
    check(++seed < 50, "no model of {} routes all tokens clearly", family);
    model = make_model(config, seed);
  }
  model.save(folder_.path());
  std::ofstream data(folder_ / "data.jsonl");
  for (const data::Sequence& s : samples) data << json{{"input_ids", s.ids}, {"labels", s.labels}}.dump() << "\n";
}

Words DeviceModel::command(const DeviceCase& how, const std::string& output) const {
  Words words{MEGALITH_PROGRAM,
              "train",
              "--model_name_or_path=" + folder_.path().string(),
              "--dataset=" + (folder_ / "data.jsonl").string(),
              "--output_dir=" + output,
              fmt::format("--cutoff_len={}", kRow),
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
  if (how.bf16) words.emplace_back("--bf16");
  words.insert(words.end(), how.run.begin(), how.run.end());
  return words;
}

DeviceRun DeviceModel::execute(const Words& words, const std::filesystem::path& output) const {
  const std::map<std::string, std::string> env{{"XDG_CACHE_HOME", (folder_ / "cache").string()},
                                               {"OMP_NUM_THREADS", "1"}};
  const ProcessResult result = run_process(words, env, std::chrono::seconds(110));
  check(result.exit_code == 0, "{} ended with {}:\n{}", fmt::join(words, " "), result.exit_code, result.err);
  DeviceRun run{numbers(output / "metrics.jsonl", "loss"), numbers(output / "metrics.jsonl", "grad_norm"), {}};
  for (const char* name : {"model.safetensors", "adapter_model.safetensors"}) {
    if (!std::filesystem::exists(output / name)) continue;
    const hf::SafetensorsFile file(output / name);
    for (const hf::TensorInfo& tensor : file.tensors()) run.tensors[tensor.name] = file.tensor(tensor.name).clone();
  }
  return run;
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
  const double loss = largest_difference(actual.losses, expected.losses);
  const double norm = largest_difference(actual.grad_norms, expected.grad_norms);
  double worst = 0;
  std::string where = "nothing";
  for (const auto& [name, tensor] : expected.tensors) {
    const auto mine = actual.tensors.find(name);
    const double error = mine == actual.tensors.end() ? INFINITY : difference(mine->second, tensor);
    if (error >= worst) where = name;
    worst = std::max(worst, error);
  }
  fmt::print("{}: loss {:.1e}, gradient norm {:.1e}, exported tensors {:.1e} ({})\n", how.name, loss, norm, worst,
             where);
  EXPECT_EQ(actual.tensors.size(), expected.tensors.size());
  // bf16 keeps 8 bits of each number; sums over ranks are rounded in between. An exported number differs by a few of
  // its last places; those of an adapter, which began with zero, are sums of such differences alone.
  const double tensors = !how.bf16 ? 1e-5 : how.adapter() ? 1e-1 : 2e-2;
  EXPECT_LE(loss, how.bf16 ? 5e-3 : 1e-5) << how.name << ": loss";
  EXPECT_LE(norm, how.bf16 ? 5e-2 : 1e-5) << how.name << ": gradient norm";
  EXPECT_LE(worst, tensors) << how.name << ": " << where;
}

}  // namespace megalith::testing
