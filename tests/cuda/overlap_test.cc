// Updates beside the next forward pass on a GPU: the bits of a run that updates at once, on a stream that traces show.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "megalith/comm/op/current_device.h"
#include "megalith/comm/op/device_clock.h"
#include "megalith/optim/overlap/side_queue.h"
#include "tests/cuda/device_case.h"
#include "tests/cuda/program_case.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

class OnCudaOverlap : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device() != TestDevice::kCuda) GTEST_SKIP() << "no GPU";
  }
};

// Overlaps updates of any size; products spare nothing, so that they have the same bits.
const std::map<std::string, std::string> kEveryUpdate{{"MEGALITH_OVERLAP_EVERY_UPDATE", "1"}};

constexpr const char* kOverlap = "--overlap_optimizer_with_forward";

json gpt2_config() {
  return {
      {"model_type", "gpt2"}, {"vocab_size", 512}, {"n_positions", 1024},        {"n_embd", 256},
      {"n_layer", 4},         {"n_head", 4},       {"layer_norm_epsilon", 1e-5}, {"activation_function", "gelu_new"},
      {"resid_pdrop", 0.0},   {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}};
}

// Ten steps with a save point after the fifth: all losses, and all tensors of the save points and the model.
void expect_same_bits(const json& config, Words words, const Words& more = {}) {
  const ProgramCase runs(config, std::vector<int>(64, 129));
  words.insert(words.end(), {"--max_steps=10", "--per_device_train_batch_size=4", "--cutoff_len=128",
                             "--full_determinism", "--save_strategy=steps", "--save_steps=5"});
  words.insert(words.end(), more.begin(), more.end());
  const auto plain = runs.train("plain", words, kEveryUpdate);
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  words.emplace_back(kOverlap);
  const auto overlapped = runs.train("overlapped", words, kEveryUpdate);
  ASSERT_EQ(overlapped.exit_code, 0) << overlapped.err;
  for (const char* name : {"loss", "grad_norm"}) {
    const std::vector<double> expected = runs.numbers("plain", name);
    ASSERT_EQ(expected.size(), 10U);
    EXPECT_EQ(runs.numbers("overlapped", name), expected) << name;
  }
  int compared = 0;
  const std::filesystem::path folder = runs.path("plain");
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (file.path().extension() != ".safetensors" || file.path().filename() == "rng.safetensors") continue;
    const auto name = std::filesystem::relative(file.path(), folder);
    const auto expected = read_tensors(file.path()), actual = read_tensors(runs.path("overlapped") / name);
    ASSERT_EQ(actual.size(), expected.size()) << name;
    for (const auto& [tensor, value] : expected) EXPECT_TRUE(actual.at(tensor).equal(value)) << name << " " << tensor;
    ++compared;
  }
  EXPECT_GE(compared, 3) << "weights and state of save points";
}

TEST_F(OnCudaOverlap, LlamaHasTheSameBits) { expect_same_bits(llama_config({.layers = 4}), {}); }

TEST_F(OnCudaOverlap, ATiedHeadHasTheSameBits) { expect_same_bits(gpt2_config(), {}); }

TEST_F(OnCudaOverlap, ExpertsHaveTheSameBits) {
  expect_same_bits(experts_config({.layers = 4}),
                   {"--moe_router_load_balancing_type=aux_loss", "--moe_aux_loss_coeff=0.01"});
}

TEST_F(OnCudaOverlap, StateInTwoBytesHasTheSameBits) {
  expect_same_bits(llama_config({.layers = 4}),
                   {"--use_precision_aware_optimizer", "--exp_avg_dtype=bf16", "--exp_avg_sq_dtype=bf16"});
}

TEST_F(OnCudaOverlap, MicrobatchesAndRecomputationHaveTheSameBits) {
  expect_same_bits(llama_config({.layers = 4}),
                   {"--gradient_accumulation_steps=2", "--recompute_granularity=full", "--recompute_method=uniform"});
}

// With products that leave multiprocessors free, the kernels of which may round differently.
TEST_F(OnCudaOverlap, ALargerModelTrainsAlike) {
  json config = llama_config({.width = 2048, .layers = 8, .vocab = 8192});
  const ProgramCase runs(config, std::vector<int>(64, 2049));
  Words words{"--max_steps=8", "--per_device_train_batch_size=8", "--cutoff_len=2048", "--trace=5-6",
              "--learning_rate=1e-4"};
  const auto plain = runs.train("plain", words);
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  words.emplace_back(kOverlap);
  const auto overlapped = runs.train("overlapped", words);
  ASSERT_EQ(overlapped.exit_code, 0) << overlapped.err;
  const std::vector<double> losses = runs.numbers("overlapped", "loss"), expected = runs.numbers("plain", "loss");
  ASSERT_EQ(losses.size(), 8U);
  ASSERT_EQ(expected.size(), 8U);
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 3e-3 * expected[i]) << i;
}

// The rows and spans of a timeline.
json events_of(const ProgramCase& runs, const std::string& output) {
  std::ifstream file(runs.path(output) + "/trace.json");
  return json::parse(file).at("traceEvents");
}
int spans_in_row(const json& events, const std::string& row) {
  int thread = -1, spans = 0;
  for (const json& event : events)
    if (event.at("ph") == "M" && event.at("name") == "thread_name" && event.at("args").at("name") == row)
      thread = event.at("tid").get<int>();
  for (const json& event : events) spans += event.at("ph") == "X" && event.at("tid") == thread ? 1 : 0;
  return spans;
}

TEST_F(OnCudaOverlap, ATimelineShowsTheSecondStream) {
  const ProgramCase runs(llama_config({.layers = 4}), std::vector<int>(64, 129));
  const Words words{"--max_steps=6", "--per_device_train_batch_size=4", "--cutoff_len=128", "--trace=4-5", kOverlap};
  ASSERT_EQ(runs.train("overlapped", words, kEveryUpdate).exit_code, 0);
  EXPECT_GE(spans_in_row(events_of(runs, "overlapped"), "side"), 2);
  ASSERT_EQ(runs.train("small", words).exit_code, 0);  // too small to be worth it
  EXPECT_EQ(spans_in_row(events_of(runs, "small"), "side"), 0);
}

// Graphs replay forward passes that wait for nothing.
TEST_F(OnCudaOverlap, GraphsUpdateAtOnce) {
  const ProgramCase runs(llama_config({.layers = 4}), std::vector<int>(64, 129));
  const Words words{"--max_steps=8",    "--per_device_train_batch_size=4",
                    "--cutoff_len=128", "--cuda_graph_impl=local",
                    "--trace=5-6",      kOverlap};
  ASSERT_EQ(runs.train("graphs", words, kEveryUpdate).exit_code, 0);
  EXPECT_EQ(spans_in_row(events_of(runs, "graphs"), "side"), 0);
}

// Pieces run after what the first stream had been given, one after the other, and the first stream after those that it
// waits for.
TEST_F(OnCudaOverlap, AQueueRunsBesideTheFirstStream) {
  const at::Device device(at::kCUDA, 0);
  comm::make_device_current(device);
  TraceRecorder trace;
  trace.set_device_clock(comm::make_device_clock(device));
  trace.start_timeline();
  const auto queue = optim::make_side_queue(device, &trace);
  ASSERT_NE(queue, nullptr);
  const at::Tensor a = at::randn({4096, 4096}, device);
  const auto busy = [&](at::Tensor x) {
    for (int i = 0; i < 20; ++i) x = at::mm(x, a).mul(1.0 / 64);
    return x.sum().mul(0);  // a zero that takes some milliseconds
  };
  const at::Tensor numbers = at::zeros({3}, device);
  for (int round = 1; round <= 3; ++round) {
    numbers.select(0, 0).add_(busy(a) + 1);
    queue->begin();
    for (int i = 1; i < 3; ++i)
      queue->add([&, i] { numbers.select(0, i).copy_(numbers.select(0, i - 1) + busy(a) + 1); });
    queue->wait_for(0);
    const at::Tensor first = numbers.select(0, 1).clone();
    queue->wait_for(1);
    const at::Tensor second = numbers.select(0, 2).clone();
    EXPECT_EQ(first.item<float>(), static_cast<float>(round + 1));
    EXPECT_EQ(second.item<float>(), static_cast<float>(round + 2));
  }
  at::accelerator::synchronizeDevice(0);
  int spans = 0;
  for (const TraceSpan& span : trace.take_spans()) spans += span.label.lane == TraceLane::kSide ? 1 : 0;
  EXPECT_EQ(spans, 6);
}

}  // namespace
}  // namespace megalith::testing
