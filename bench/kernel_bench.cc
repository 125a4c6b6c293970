// Measures the fused operations of ops/ on a GPU, one by one: time, bytes per second against a copy of as many bytes in
// the same process, and the ratio to PyTorch's eager and compiled forms, which a peer measures in between.
//
//   kernel_bench [--only rms_norm,adam] [--runs N] [--peer 0]
//
// Prints one JSON line per case: the median of N runs, each after a pass over 1 GiB, which flushes the L2 cache and
// lets the host run ahead. The answer is checked against ATen's in fp32 before anything is timed. The peer runs with
// the Python in MEGALITH_PYTHON (torch 2.11).
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <deque>
#include <map>
#include <optional>

#include "bench/kernel_cases.h"
#include "bench/options.h"
#include "bench/peer_process.h"
#include "megalith/base/error.h"

namespace megalith::bench {
namespace {

using nlohmann::ordered_json;

struct Settings {
  std::string only;
  int runs = 15, peer = 1;
};

// Times kernels by events on the stream. The flush between runs takes longer than launching the next one, so host time
// is hidden.
class Clock {
 public:
  explicit Clock(int runs)
      : runs_(runs), flush_(at::empty({int64_t{1} << 28}, at::TensorOptions(at::kCUDA).dtype(at::kFloat))) {}

  // Returns the median milliseconds of `run`.
  double ms(const std::function<void()>& prepare, const std::function<void()>& run) const {
    std::deque<c10::Event> events;
    const c10::impl::VirtualGuardImpl device(at::kCUDA);
    const c10::Stream stream = device.getStream(flush_.device());
    for (int i = -2; i < runs_; ++i) {  // the first two warm up
      if (prepare) prepare();
      flush_.zero_();
      for (const bool after : {false, true}) {
        if (after) run();
        events.emplace_back(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT).record(stream);
      }
    }
    events.back().synchronize();
    std::vector<double> times;
    for (size_t i = 4; i < events.size(); i += 2) times.push_back(events[i].elapsedTime(events[i + 1]));
    return median(times);
  }

  // Returns the gigabytes per second of a copy that reads and writes `bytes` in all; sizes are rounded to powers of two
  // and their results are cached.
  double copy_rate(double bytes) {
    const auto elements = int64_t{1} << std::clamp(static_cast<int>(std::lround(std::log2(bytes / 8))), 18, 30);
    if (const auto known = copies_.find(elements); known != copies_.end()) return known->second;
    const at::Tensor from = at::ones({elements}, flush_.options()), to = at::empty_like(from);
    const double rate = static_cast<double>(elements) * 8 / ms({}, [&] { to.copy_(from); }) / 1e6;
    return copies_[elements] = rate;
  }

 private:
  int runs_;
  at::Tensor flush_;
  std::map<int64_t, double> copies_;
};

constexpr double kAllowed = 1e-2;  // bf16 has eight bits of precision; a wrong term differs by far more

// A case with FLOPs is bound by compute and reported in TFLOP/s; the others are compared with a copy of as many bytes.
void measure(const KernelCase& each, Clock& clock, PeerProcess* peer, int runs) {
  const double error = each.error();
  check<DataError>(error <= kAllowed, "{} {}: the answer is off by {} of its size", each.kernel, each.part, error);
  const double ms = clock.ms(each.prepare, each.run);
  ordered_json line{{"bench", "kernel"}, {"kernel", each.kernel}, {"part", each.part}, {"sizes", each.sizes},
                    {"ms", ms},          {"error", error}};
  if (each.flops > 0) {
    line["tflop_per_s"] = each.flops / ms / 1e9;
  } else {
    const double rate = each.bytes / ms / 1e6, copy = clock.copy_rate(each.bytes);
    line.update({{"bytes", each.bytes}, {"gb_per_s", rate}, {"copy_gb_per_s", copy}, {"of_copy", rate / copy}});
  }
  if (peer) {
    const auto answer = peer->ask(fmt::format("{} {} {} {}", each.kernel, each.part, runs, fmt::join(each.sizes, " ")));
    for (const std::string form : {"eager", "compiled"}) {
      line[form + "_ms"] = answer.at(form);
      line["times_" + form] = answer.at(form).get<double>() / ms;
    }
  }
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

void run(int argc, char** argv) {
  Settings s;
  read_options(argc, argv, {{"--only", &s.only}, {"--runs", &s.runs}, {"--peer", &s.peer}});
  check<ConfigError>(at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0,
                     "kernel_bench measures the kernels for a GPU, and there is none");
  at::detail::getCUDAHooks().init();
  std::optional<PeerProcess> peer;
  if (s.peer != 0) peer.emplace(std::vector<std::string>{peer_python(), PEER_SCRIPT});
  Clock clock(s.runs);
  for (const auto& list : {differentiable_cases(), pass_cases()})
    for (const MakeCases& make : list)
      for (const KernelCase& each : make())
        if (s.only.empty() || ("," + s.only + ",").find("," + each.kernel + ",") != std::string::npos)
          measure(each, clock, peer ? &*peer : nullptr, s.runs);
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) try {
  megalith::bench::run(argc, argv);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "kernel_bench: {}\n", error.what());
  return 1;
}
