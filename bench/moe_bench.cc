// Measures forward and backward of a layer of experts against Hugging Face's qwen3_moe with each of its
// implementations, and against a plain loop over the experts in ATen. Prints one JSON line per case; ratios are of
// medians of interleaved runs. Needs a Python with torch 2.11 and transformers 5 (MEGALITH_PYTHON).
//
//   moe_bench [--rounds N] [--steps N] [--only NAME] [--alone 1]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <map>
#include <thread>

#include "bench/peer_process.h"
#include "megalith/base/allocator.h"
#include "megalith/base/error.h"
#include "megalith/nn/moe/moe_layer.h"

namespace megalith {
namespace {

using nlohmann::ordered_json;

// Sizes of a layer; names are experts x experts per token.
struct Shape {
  std::string name;
  int64_t hidden, width, experts, topk, tokens;
  at::ScalarType dtype = at::kFloat;
};

// Returns the same pseudo-random numbers as the peer, in (-scale, scale), so that tokens spread over the experts.
at::Tensor numbers(std::vector<int64_t> shape, double factor, double scale) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return (((at::arange(n, at::kDouble) * factor).sin() * 43758.5453).frac() * scale).view(shape).to(at::kFloat);
}

// One layer with weights made by formula, on one rank.
class OwnLayer {
 public:
  explicit OwnLayer(const Shape& s)
      : worlds_(comm::World::in_process(1)),
        context_(*worlds_[0], layout::RankGrid(layout::GridShape{})),
        set_(s.dtype, at::kCPU),
        layer_(nn::ParameterScope(set_), shape_of(s), {}, {context_.tp(), false}, context_),
        x_(numbers({s.tokens, s.hidden}, 0.37, 1).to(s.dtype)),
        topk_(s.topk),
        experts_(s.experts) {
    const at::NoGradGuard no_grad;
    const auto fill = [this](const char* name, const at::Tensor& value) {
      const at::Tensor into = set_.find(name)->value;
      into.copy_(value.view(into.sizes()));
    };
    fill("router.weight", numbers({s.experts, s.hidden}, 1.7, 0.1));
    fill("experts.gate_up.weight", numbers({s.experts, 2 * s.width, s.hidden}, 0.7, 0.05));
    fill("experts.down.weight", numbers({s.experts, s.hidden, s.width}, 1.3, 0.05));
    for (const auto& p : set_.all()) p->grad.main_grad = at::empty(p->value.sizes(), at::kFloat);
    // One sequence of all tokens; experts do not look at positions.
    input_.layout = ops::SequenceLayout::packed({s.tokens});
  }

  void step() {
    start();
    y_ = layer_.forward(dx_, {}, input_);
    y_.backward(x_);
  }

  // The obvious implementation: one expert after the other, with ATen's operations and autograd.
  void loop() {
    start();
    const auto weight = [this](const char* name) { return set_.find(name)->value; };
    const at::Tensor up = weight("experts.gate_up.weight").view({experts_, -1, x_.size(1)});
    const at::Tensor down = weight("experts.down.weight").view({experts_, x_.size(1), -1});
    const auto [values, chosen] = dx_.mm(weight("router.weight").t()).to(at::kFloat).topk(topk_, -1);
    const at::Tensor weights = values.softmax(-1);
    y_ = at::zeros_like(x_);
    for (int64_t e = 0; e < experts_; ++e) {
      const auto where = chosen.eq(e).nonzero_numpy();
      if (where[0].numel() == 0) continue;
      const auto halves = dx_.index_select(0, where[0]).mm(up[e].t()).chunk(2, 1);
      const at::Tensor out = (at::silu(halves[0]) * halves[1]).mm(down[e].t());
      y_ = y_.index_add(0, where[0], (out * weights.index({where[0], where[1]}).unsqueeze(1)).to(x_.scalar_type()));
    }
    y_.backward(x_);
  }

  // Norms stand for the tensors when the sides are compared: they need no exchange of megabytes.
  double output_norm() const { return y_.detach().to(at::kDouble).norm().item<double>(); }
  double gradient_norm() const {
    double square = dx_.grad().to(at::kDouble).square().sum().item<double>();
    for (const auto& p : set_.all()) {
      if (!p->grad.stale) square += p->grad.main_grad.to(at::kDouble).square().sum().item<double>();
      if (p->value.grad().defined()) square += p->value.grad().to(at::kDouble).square().sum().item<double>();
    }
    return std::sqrt(square);
  }

 private:
  static nn::MoeShape shape_of(const Shape& s) {
    return {.router = {.experts = s.experts, .topk = s.topk}, .hidden = s.hidden, .width = s.width};
  }
  // Gradients of the last step do not accumulate.
  void start() {
    for (const auto& p : set_.all()) {
      p->grad.stale = true;
      p->value.mutable_grad().reset();
    }
    dx_ = x_.detach().requires_grad_();
  }

  std::vector<std::unique_ptr<comm::World>> worlds_;
  parallel::ParallelContext context_;
  nn::ParameterSet set_;
  nn::MoeLayer layer_;
  at::Tensor x_, dx_, y_;
  int64_t topk_, experts_;
  nn::LayerInput input_;
};

// A run that does not count, then `steps` timed ones.
template <typename F>
std::vector<double> time_ms(const F& f, int steps) {
  f();
  std::vector<double> ms;
  for (int i = 0; i < steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return ms;
}

const char* torch_name(at::ScalarType dtype) { return dtype == at::kFloat ? "float32" : "bfloat16"; }

// bf16 rounds after every operation, and the sides round in different places: 5 % of a norm is allowed.
void check_answer(OwnLayer& own, bench::PeerProcess& peer, const Shape& shape) {
  own.step();
  const auto right = peer.ask("check");
  const double allowed = shape.dtype == at::kFloat ? 1e-4 : 0.05;
  for (const auto& [what, value] : {std::pair("output", own.output_norm()), {"gradients", own.gradient_norm()}})
    check<DataError>(std::abs(value - right.at(what).get<double>()) <= allowed * right.at(what).get<double>(),
                     "{}: the norm of the {} is {}, Hugging Face's {}", shape.name, what, value,
                     right.at(what).get<double>());
}

// The peer's best implementation is what counts: times_hf_best is its time over ours.
ordered_json run_case(const Shape& shape, int rounds, int steps, bool alone) {
  OwnLayer own(shape);
  std::map<std::string, std::vector<double>> ms;
  std::optional<bench::PeerProcess> peer;
  if (!alone) {
    peer.emplace(std::vector<std::string>{bench::peer_python(), PEER_SCRIPT, std::to_string(shape.hidden),
                                          std::to_string(shape.width), std::to_string(shape.experts),
                                          std::to_string(shape.topk), std::to_string(shape.tokens),
                                          torch_name(shape.dtype)});
    check_answer(own, *peer, shape);
  }
  const auto add = [&ms](const std::string& name, const std::vector<double>& more) {
    ms[name].insert(ms[name].end(), more.begin(), more.end());
  };
  for (int round = 0; round < rounds; ++round) {
    add("megalith", time_ms([&] { own.step(); }, steps));
    add("loop", time_ms([&] { own.loop(); }, steps));
    if (!peer) continue;
    for (const std::string name : {"eager", "batched_mm", "grouped_mm"}) {
      if (name == "batched_mm" && shape.tokens > 512) continue;  // copies the weights of an expert for every token
      add(name, peer->ask(fmt::format("time {} {}", name, steps)).at("ms").get<std::vector<double>>());
    }
  }
  ordered_json line{{"case", shape.name},
                    {"hidden", shape.hidden},
                    {"width", shape.width},
                    {"experts", shape.experts},
                    {"topk", shape.topk},
                    {"tokens", shape.tokens},
                    {"dtype", torch_name(shape.dtype)},
                    {"threads", at::get_num_threads()}};
  double best = 0;
  for (const auto& [name, values] : ms) {
    line[name + "_ms"] = bench::median(values);
    if (name != "megalith" && name != "loop" && (best == 0 || bench::median(values) < best))
      best = bench::median(values);
  }
  if (best > 0) line["times_hf_best"] = best / bench::median(ms["megalith"]);
  line["times_loop"] = bench::median(ms["loop"]) / bench::median(ms["megalith"]);
  return line;
}

int run(int argc, char** argv) {
  int rounds = 3, steps = 5;
  bool alone = false;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i], value = argv[i + 1];
    if (word == "--rounds") rounds = std::stoi(value);
    if (word == "--steps") steps = std::stoi(value);
    if (word == "--only") only = value;
    if (word == "--alone") alone = value != "0";
  }
  at::set_num_threads(static_cast<int>(std::thread::hardware_concurrency()));
  // Few wide experts to many narrow ones, where the overhead per expert dominates.
  const std::vector<Shape> shapes{{"small-8x2", 256, 128, 8, 2, 2048},
                                  {"mid-32x4", 512, 192, 32, 4, 2048},
                                  {"many-128x8", 512, 96, 128, 8, 1024},
                                  {"wide-8x2", 512, 1024, 8, 2, 1024},
                                  {"mid-32x4-bf16", 512, 192, 32, 4, 2048, at::kBFloat16},
                                  {"many-128x8-bf16", 512, 96, 128, 8, 1024, at::kBFloat16}};
  for (const Shape& shape : shapes)
    if (only.empty() || only == shape.name) {
      fmt::print("{}\n", run_case(shape, rounds, steps, alone).dump());
      std::fflush(stdout);
    }
  return 0;
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  try {
    megalith::keep_freed_memory();
    return megalith::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "moe_bench: {}\n", error.what());
    return 1;
  }
}
