// Measures forward and backward of one layer and of small models against the same in PyTorch: eager, compiled and bf16
// variants. Prints one JSON line per case; ratios are of medians of interleaved runs. Needs a Python with torch 2.11
// (MEGALITH_PYTHON).
//
//   model_bench [--rounds N] [--steps N] [--only llama-d256-fp32] [--what layer|model] [--alone 1]
//
// With --alone 1 there is no peer, only our time.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "bench/peer_process.h"
#include "megalith/base/allocator.h"
#include "megalith/base/error.h"
#include "megalith/io/json_reader.h"
#include "megalith/model/families/family.h"
#include "megalith/model/pretrained.h"
#include "tests/support/memory_meter.h"
#include "tests/support/temp_folder.h"

namespace megalith {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

// A model small enough for a CPU: width, layers, heads, vocabulary and the batch of a step.
struct Shape {
  std::string family, name;
  int64_t hidden, layers, heads, kv_heads, vocab, width, batch, tokens;
};

// The config.json that both sides read.
ordered_json config_of(const Shape& s) {
  if (s.family == "gpt2")
    return {{"model_type", "gpt2"},        {"n_embd", s.hidden},
            {"n_layer", s.layers},         {"n_head", s.heads},
            {"n_inner", s.width},          {"vocab_size", s.vocab},
            {"n_positions", 1024},         {"layer_norm_epsilon", 1e-5},
            {"embd_pdrop", 0.0},           {"attn_pdrop", 0.0},
            {"resid_pdrop", 0.0},          {"dtype", "float32"},
            {"tie_word_embeddings", true}, {"activation_function", "gelu_new"}};
  return {{"model_type", "llama"},
          {"hidden_size", s.hidden},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"num_key_value_heads", s.kv_heads},
          {"intermediate_size", s.width},
          {"vocab_size", s.vocab},
          {"max_position_embeddings", 1024},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"dtype", "float32"}};
}

// Our side: one rank, gradients in fp32 buffers as a training run holds them.
class OwnModel {
 public:
  OwnModel(const fs::path& folder, const Shape& shape, at::ScalarType dtype, bool layer)
      : worlds_(comm::World::in_process(1)),
        context_(*worlds_[0], layout::RankGrid(layout::GridShape{})),
        config_(model::read_model_config(folder)),
        layer_(layer) {
    model::ModelOptions options;
    options.dtype = dtype;
    auto place = model::ChunkPlace::whole(config_);
    if (layer) place = {0, 1, false, false};
    models_ = std::make_unique<model::VirtualModels>(config_, options, std::vector{place}, context_);
    model::load_weights(*models_, folder, config_, 1);
    for (nn::Parameter* p : models_->parameters()) p->grad.main_grad = at::empty(p->value.sizes(), at::kFloat);
    const int64_t t = shape.batch * shape.tokens;
    layout_ = ops::SequenceLayout::dense(shape.batch, shape.tokens);
    ids_ = (at::arange(t, at::kLong) * 7919 + 13).remainder(shape.vocab);
    targets_ = model::shift_labels(ids_, layout_);
    count_ = static_cast<double>(shape.batch * (shape.tokens - 1));
    x_ = (at::arange(t * shape.hidden, at::kDouble) * 0.37).sin().view({t, -1}).to(dtype);
  }

  double step() {
    for (nn::Parameter* p : models_->parameters()) {
      p->grad.stale = true;
      p->value.mutable_grad().reset();
    }
    if (layer_) {
      at::Tensor x = x_.detach().requires_grad_();
      (*models_)[0].forward({.layout = layout_, .hidden = x}).backward(x_);
      return 0;
    }
    const at::Tensor losses = (*models_)[0].forward({.layout = layout_, .ids = ids_, .targets = targets_});
    const at::Tensor loss = losses.sum() / count_;
    loss.backward();
    return loss.item<double>();
  }

  double grad_norm() const {
    double square = 0;
    for (const nn::Parameter* p : models_->parameters()) {
      if (!p->grad.stale) square += p->grad.main_grad.to(at::kDouble).square().sum().item<double>();
      if (p->value.grad().defined()) square += p->value.grad().to(at::kDouble).square().sum().item<double>();
    }
    return std::sqrt(square);
  }

  // Returns the peak of tensor memory in a step, including the gradients, which are allocated before it.
  int64_t peak_bytes() {
    const testing::MemoryMeter meter;
    step();
    int64_t gradients = 0;
    for (const nn::Parameter* p : models_->parameters()) gradients += static_cast<int64_t>(p->grad.main_grad.nbytes());
    return meter.peak() + gradients;
  }

 private:
  std::vector<std::unique_ptr<comm::World>> worlds_;
  parallel::ParallelContext context_;
  model::ModelConfig config_;
  bool layer_;
  std::unique_ptr<model::VirtualModels> models_;
  ops::SequenceLayout layout_;
  at::Tensor ids_, targets_, x_;
  double count_ = 1;
};

// The first step warms caches and allocators up and does not count.
std::vector<double> time_steps(OwnModel& own, int steps) {
  own.step();
  std::vector<double> ms;
  for (int i = 0; i < steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    own.step();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return ms;
}

// Both sides load the same weights, so their losses can be compared.
void write_checkpoint(const fs::path& folder, const Shape& shape) {
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
  const auto config = model::read_model_config(io::parse_json_file(config_of(shape).dump(), "config.json"));
  const model::VirtualModels models(config, {}, {model::ChunkPlace::whole(config)}, context);
  models.initialize_parameters(3);
  model::save_pretrained(models, folder, {});
}

// Rounds alternate between the peer's variants and ours, so that a change of the machine's speed hits both alike.
void run_case(const Shape& shape, bool bf16, bool layer, int rounds, int steps, bool alone) {
  const testing::TempFolder temp;
  const fs::path folder = temp / "model";
  write_checkpoint(folder, shape);
  if (alone) {
    OwnModel own(folder, shape, bf16 ? at::kBFloat16 : at::kFloat, layer);
    fmt::print("{} ms\n", bench::median(time_steps(own, rounds * steps)));
    return;
  }
  std::vector<std::string> command{bench::peer_python(), PEER_SCRIPT, folder.string(), std::to_string(shape.batch),
                                   std::to_string(shape.tokens)};
  if (layer) command.push_back("--layer");
  bench::PeerProcess peer(command);

  // Check the answers of both sides in fp32 before timing them.
  const auto expected = peer.ask("check");
  {
    OwnModel own(folder, shape, at::kFloat, layer);
    const double loss = own.step();
    check(std::abs(loss - expected["loss"].get<double>()) <= 1e-4, "the losses differ: {} here, {} there", loss,
          expected["loss"].get<double>());
    const double norm = own.grad_norm(), peer_norm = expected["grad_norm"].get<double>();
    check(std::abs(norm - peer_norm) <= 1e-3 * peer_norm, "the gradient norms differ: {} here, {} there", norm,
          peer_norm);
  }
  // Every form that a PyTorch user might choose; times_best compares with the fastest of them.
  const std::vector<std::string> variants =
      bf16 ? std::vector<std::string>{"bf16",      "bf16-compile",     "autocast", "autocast-compile",
                                      "bf16-sdpa", "bf16-sdpa-compile"}
           : std::vector<std::string>{"eager", "compile"};
  OwnModel own(folder, shape, bf16 ? at::kBFloat16 : at::kFloat, layer);
  std::vector<double> ours;
  std::map<std::string, std::vector<double>> peer_ms;
  for (int round = 0; round < rounds; ++round) {
    for (const std::string& variant : variants) {
      const auto answer = peer.ask(fmt::format("time {} {}", variant, steps));
      for (const auto& ms : answer.at("ms")) peer_ms[variant].push_back(ms.get<double>());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // lets the other side's threads go idle
      for (const double ms : time_steps(own, steps)) ours.push_back(ms);
    }
  }
  const double own_median = bench::median(ours);
  ordered_json line{{"bench", layer ? "layer" : "model"},
                    {"case", fmt::format("{}-{}-{}", shape.family, shape.name, bf16 ? "bf16" : "fp32")},
                    {"batch", shape.batch},
                    {"tokens", shape.tokens},
                    {"ms", own_median}};
  double best = 1e300;
  for (const auto& [variant, ms] : peer_ms) {
    const double median = bench::median(ms);
    line[variant + "_ms"] = median;
    line["times_" + variant] = median / own_median;
    best = std::min(best, median);
  }
  line["times_best"] = best / own_median;
  const std::string plain = bf16 ? "bf16" : "eager";
  // Memory is measured after timing, so that the meter does not disturb it.
  line["peak_bytes"] = own.peak_bytes();
  line[plain + "_peak_bytes"] = peer.ask("peak " + plain)["bytes"];
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  using megalith::Shape;
  int rounds = 5, steps = 3;
  std::string only, what;
  bool alone = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--rounds") rounds = std::atoi(argv[i + 1]);
    if (word == "--steps") steps = std::atoi(argv[i + 1]);
    if (word == "--only") only = argv[i + 1];
    if (word == "--what") what = argv[i + 1];
    if (word == "--alone") alone = std::string(argv[i + 1]) == "1";
  }
  const std::vector<Shape> shapes{{"llama", "d256", 256, 4, 4, 2, 2048, 704, 8, 256},
                                  {"llama", "d512", 512, 8, 8, 4, 2048, 1408, 8, 256},
                                  {"gpt2", "d256", 256, 4, 4, 4, 2048, 1024, 8, 256},
                                  {"gpt2", "d512", 512, 8, 8, 8, 2048, 2048, 8, 256}};
  // Two threads on both sides, whatever the machine has: results of different machines stay comparable.
  megalith::keep_freed_memory();  // as the program does
  at::set_num_threads(2);
  ::setenv("BENCH_THREADS", "2", 1);
  try {
    for (const bool layer : {true, false})
      for (const Shape& shape : shapes)
        for (const bool bf16 : {false, true}) {
          if (layer && shape.hidden != 512) continue;
          if (!what.empty() && what != (layer ? "layer" : "model")) continue;
          const std::string name = fmt::format("{}-{}-{}", shape.family, shape.name, bf16 ? "bf16" : "fp32");
          if (only.empty() || name.find(only) != std::string::npos)
            megalith::run_case(shape, bf16, layer, rounds, steps, alone);
        }
  } catch (const std::exception& error) {
    fmt::print(stderr, "model_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
