// Measures a data-parallel training step of real processes, with and without overlap of gradient reduction and
// parameter gathering. The two must have the same gradient norm. Prints one JSON line:
//
//   ddp_bench [--nproc N] [--rounds N]
//
//   overlap_ms, plain_ms       median step times; the two take turns
//   ratio                      plain / overlap
//   buckets                    buckets of the gradient buffer
//   reduced_in_backward        most buckets whose reduction had finished before backward
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "bench/peer_process.h"
#include "megalith/base/allocator.h"
#include "megalith/base/error.h"
#include "megalith/comm/launch/launcher.h"
#include "megalith/model/families/family.h"
#include "megalith/model/virtual_models.h"
#include "megalith/optim/finalize.h"
#include "megalith/optim/optimizer.h"

namespace megalith {
namespace {

using nlohmann::ordered_json;

const ordered_json kConfig{{"model_type", "llama"},       {"hidden_size", 256},       {"num_hidden_layers", 6},
                           {"num_attention_heads", 4},    {"num_key_value_heads", 2}, {"intermediate_size", 704},
                           {"vocab_size", 2048},          {"rms_norm_eps", 1e-5},     {"max_position_embeddings", 1024},
                           {"hidden_act", "silu"},        {"dtype", "float32"},       {"rope_theta", 10000.0},
                           {"tie_word_embeddings", false}};
constexpr int64_t kBatch = 4, kTokens = 256, kVocab = 2048;

// One copy of the model in training.
class Training {
 public:
  Training(parallel::ParallelContext& context, bool overlap)
      : context_(context),
        config_(model::read_model_config(io::parse_json_file(kConfig.dump(), "config.json"))),
        models_(config_, {}, {model::ChunkPlace::whole(config_)}, context) {
    models_.initialize_parameters(1);
    ddp_ = std::make_unique<optim::DistributedDataParallel>(
        models_.parameters(),
        optim::DdpSettings{.use_distributed_optimizer = true,
                           .overlap_grad_reduce = overlap,
                           .per_token_loss = true,
                           .bucket_size = optim::BucketSize::elements(600'000),
                           .bucketing = overlap},
        context);
    optimizer_ =
        std::make_unique<optim::Optimizer>(std::vector{ddp_.get()}, optim::OptimizerSettings{}, context,
                                           overlap ? optim::ParamGather::kInForward : optim::ParamGather::kInStep);
    for (optim::ParamGroup& group : optimizer_->groups()) group.lr = 1e-4;
    if (overlap)
      models_[0].set_before_part([this](std::span<nn::Parameter* const> part) { ddp_->wait_for_params(part); });
  }

  // Runs a step and returns its milliseconds.
  double step() {
    const auto start = std::chrono::steady_clock::now();
    const auto layout = ops::SequenceLayout::dense(kBatch, kTokens);
    const at::Tensor ids = (at::arange(kBatch * kTokens, at::kLong) * 7919 + context_.rank()).remainder(kVocab);
    ddp_->zero_grad();
    const at::Tensor losses =
        models_[0].forward({.layout = layout, .ids = ids, .targets = model::shift_labels(ids, layout)});
    losses.sum().backward();
    reduced_in_backward_ = std::max(reduced_in_backward_, ddp_->buckets_reduced());
    optim::finalize_gradients({ddp_.get()}, context_, kBatch * (kTokens - 1));
    norm_ = optimizer_->step(scaler_).grad_norm.value_or(-1);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

  double norm() const { return norm_; }
  int reduced_in_backward() const { return reduced_in_backward_; }
  size_t buckets() const { return ddp_->buffers()[0]->layout().buckets.size(); }

 private:
  parallel::ParallelContext& context_;
  model::ModelConfig config_;
  model::VirtualModels models_;
  std::unique_ptr<optim::DistributedDataParallel> ddp_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradScaler scaler_ = optim::GradScaler::constant(1);
  int reduced_in_backward_ = 0;
  double norm_ = 0;
};

int run_rank(int rounds) {
  const comm::Rendezvous place = comm::rendezvous_from_env();
  const auto world = comm::World::connect(place, {});
  parallel::ParallelContext context(*world, layout::RankGrid({.world_size = world->size()}));
  Training overlapped(context, true), plain(context, false);
  std::vector<double> with, without;
  for (int round = 0; round < rounds + 2; ++round) {  // two to warm up and to record the order of gradients
    const double a = overlapped.step(), b = plain.step();
    check(overlapped.norm() == plain.norm(), "the gradient norms differ: {} and {}", overlapped.norm(), plain.norm());
    if (round < 2) continue;
    with.push_back(a);
    without.push_back(b);
  }
  if (world->rank() == 0) {
    const double a = bench::median(with), b = bench::median(without);
    fmt::print("{}\n", ordered_json{{"bench", "ddp"},
                                    {"ranks", world->size()},
                                    {"overlap_ms", a},
                                    {"plain_ms", b},
                                    {"ratio", b / a},
                                    {"buckets", overlapped.buckets()},
                                    {"reduced_in_backward", overlapped.reduced_in_backward()}}
                           .dump());
    std::fflush(stdout);
  }
  world->close();
  return 0;
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  megalith::comm::LaunchOptions launch;
  launch.nproc = 2;
  int rounds = 15;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--nproc") launch.nproc = std::atoi(argv[i + 1]);
    if (std::string(argv[i]) == "--rounds") rounds = std::atoi(argv[i + 1]);
  }
  megalith::keep_freed_memory();
  try {
    return megalith::comm::launch_ranks(launch, [rounds] {
      try {
        return megalith::run_rank(rounds);
      } catch (const std::exception& error) {
        fmt::print(stderr, "ddp_bench: {}\n", error.what());
        return 1;
      }
    });
  } catch (const std::exception& error) {
    fmt::print(stderr, "ddp_bench: {}\n", error.what());
    return 1;
  }
}
