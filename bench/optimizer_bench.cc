// Measures an optimizer step (global norm, clipping, AdamW on fp32 parameters, cast to bf16) against the same in
// PyTorch: clipping, torch.optim.AdamW(fused=True) and a cast. Prints one JSON line. Needs a Python with torch 2.11
// (MEGALITH_PYTHON).
//
//   optimizer_bench [--rounds N]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "bench/peer_process.h"
#include "megalith/base/allocator.h"
#include "megalith/base/error.h"
#include "megalith/optim/optimizer.h"

namespace megalith {
namespace {

constexpr int kLayers = 8;
constexpr int64_t kHidden = 768, kWidth = 2048;  // 8 layers of about 7 million elements

// The parameters of a model of this size; peers/optimizer.py makes the same.
std::vector<std::vector<int64_t>> shapes() {
  std::vector<std::vector<int64_t>> all;
  for (int i = 0; i < kLayers; ++i)
    for (const auto& shape : std::vector<std::vector<int64_t>>{{kHidden},
                                                               {3 * kHidden, kHidden},
                                                               {kHidden, kHidden},
                                                               {kHidden},
                                                               {2 * kWidth, kHidden},
                                                               {kHidden, kWidth}})
      all.push_back(shape);
  return all;
}

// Numbers by formula, so that the peer has the same without a file.
at::Tensor values(const std::vector<int64_t>& shape, double frequency) {
  const at::Tensor t = at::empty(shape, at::kFloat);
  return (at::arange(t.numel(), at::kDouble) * frequency).sin().mul(0.1).to(at::kFloat).view(shape);
}

// All state on one rank; gradients are set once, since only time matters after the check.
class Own {
 public:
  Own()
      : worlds_(comm::World::in_process(1)),
        context_(*worlds_[0], layout::RankGrid(layout::GridShape{})),
        set_(at::kBFloat16, at::kCPU) {
    const at::NoGradGuard no_grad;
    std::vector<nn::Parameter*> all;
    for (const auto& shape : shapes()) {
      all.push_back(&nn::ParameterScope(set_).add({.name = fmt::format("p{}.weight", all.size())}, shape));
      all.back()->value.copy_(values(shape, 0.37));
    }
    ddp_ = std::make_unique<optim::DistributedDataParallel>(all, optim::DdpSettings{}, context_);
    optimizer_ = std::make_unique<optim::Optimizer>(std::vector{ddp_.get()}, optim::OptimizerSettings{}, context_);
    for (optim::ParamGroup& group : optimizer_->groups()) group.lr = 1e-3, group.weight_decay = 0.1;
    for (nn::Parameter* p : all) p->grad.main_grad.copy_(values(p->value.sizes().vec(), 0.11));
  }
  double step() {
    const auto start = std::chrono::steady_clock::now();
    optimizer_->step(scaler_);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }
  double checksum() const {
    double sum = 0;
    for (const auto& p : set_.all()) sum += p->value.detach().to(at::kDouble).abs().sum().item<double>();
    return sum;
  }
  int64_t numel() const { return set_.numel(); }

 private:
  std::vector<std::unique_ptr<comm::World>> worlds_;
  parallel::ParallelContext context_;
  nn::ParameterSet set_;
  std::unique_ptr<optim::DistributedDataParallel> ddp_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::GradScaler scaler_ = optim::GradScaler::constant(1);
};

void run(int rounds) {
  Own own;
  bench::PeerProcess peer(
      {bench::peer_python(), PEER_SCRIPT, std::to_string(kLayers), std::to_string(kHidden), std::to_string(kWidth)});
  own.step();
  const double here = own.checksum(), there = peer.ask("check")["checksum"].get<double>();
  check(std::abs(here - there) <= 1e-4 * there, "the parameters differ: {} here, {} there", here, there);
  // Five steps each in turn.
  std::vector<double> ours, theirs;
  for (int round = 0; round < rounds; ++round) {
    const auto answer = peer.ask("time 5");
    for (const auto& ms : answer["ms"]) theirs.push_back(ms.get<double>());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // lets the other side's threads go idle
    own.step();
    for (int i = 0; i < 5; ++i) ours.push_back(own.step());
  }
  const double a = bench::median(ours), b = bench::median(theirs);
  fmt::print("{}\n", nlohmann::ordered_json{{"bench", "optimizer"},
                                            {"elements", own.numel()},
                                            {"threads", at::get_num_threads()},
                                            {"ms", a},
                                            {"torch_fused_ms", b},
                                            {"times_torch_fused", b / a}}
                         .dump());
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  int rounds = 8;
  for (int i = 1; i + 1 < argc; i += 2)
    if (std::string(argv[i]) == "--rounds") rounds = std::atoi(argv[i + 1]);
  megalith::keep_freed_memory();
  at::set_num_threads(2);
  ::setenv("BENCH_THREADS", "2", 1);
  try {
    megalith::run(rounds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "optimizer_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
