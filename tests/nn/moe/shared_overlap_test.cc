// Shared experts run while rows are in flight, forward and backward: matrix products that a rank starts between the
// start of an exchange and the wait for it. Counted in the order of one thread, never timed.
#include <ATen/record_function.h>

#include <algorithm>

#include "megalith/base/trace.h"
#include "megalith/nn/layer_input.h"
#include "megalith/nn/moe/moe_layer.h"
#include "tests/nn/moe/moe_case.h"

namespace megalith::nn {
namespace {

// When each product of this thread began; nullptr where nobody counts. A callback of libtorch has no other way to it.
struct ProductTimes {
  const TraceRecorder& clock;
  std::vector<int64_t> times{};
};
thread_local ProductTimes* product_times = nullptr;

std::unique_ptr<at::ObserverContext> note_product(const at::RecordFunction& call) {
  const std::string name = call.name();
  if (product_times && (name == "aten::mm" || name == "aten::addmm"))
    product_times->times.push_back(product_times->clock.now_ns());
  return nullptr;
}

// Returns the products begun during each exchange of rows with this purpose, in the order of the exchanges.
std::vector<int64_t> products_during(const std::vector<TraceSpan>& spans, const std::string& purpose,
                                     const std::vector<int64_t>& times) {
  std::vector<int64_t> counts;
  for (const TraceSpan& span : spans)
    if (span.label.purpose == purpose)
      counts.push_back(
          std::ranges::count_if(times, [&](int64_t at) { return span.begin_ns < at && at < span.end_ns; }));
  return counts;
}

struct SharedOverlapCase {
  MoeOptions options;
  std::vector<int64_t> forward, backward;  // products beside dispatch and combine; beside their gradients
};

TEST(SharedOverlap, RunsBesideDispatchAndCombineInBothDirections) {
  const std::vector<SharedOverlapCase> cases{
      {{}, {0, 0}, {0, 0}},
      {{.overlap_shared = true}, {1, 1}, {2, 2}},  // up | down; gradients of input and weight: of down | of up
      {{.overlap_shared = true, .recompute_shared = true}, {2, 0}, {0, 2 + 4}}};
  for (const SharedOverlapCase& each : cases) {
    MoeShape shape{.router = {.experts = 4, .topk = 2}, .hidden = 12, .width = 8, .shared_width = 8};
    testing::run_ranks(2, [&](const testing::Rank& r) {
      parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .ep = 2}));
      ParameterSet set(at::kFloat, at::kCPU);
      const MoeLayer layer(ParameterScope(set), shape, each.options, {context.tp(), false}, context);
      const FullTensors weights = random_moe_weights(shape, 5);
      for (const auto& parameter : set.all()) {
        const at::NoGradGuard no_grad;
        for (const auto& part : parameter->sharded()) part.local.copy_(rectangle(weights.at(part.name), part));
      }
      LayerInput input;
      input.layout = ops::SequenceLayout::packed({7});
      const at::Tensor x = leaf(random_tensor({7, shape.hidden}, static_cast<uint64_t>(r.rank)));
      TraceRecorder trace;
      trace.start_timeline();
      r.world.set_trace(&trace);
      ProductTimes products{trace};
      product_times = &products;
      const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(note_product));
      layer.forward(x, {}, input).backward(random_tensor({7, shape.hidden}, 9));
      at::removeCallback(handle);
      product_times = nullptr;
      r.world.set_trace(nullptr);
      const std::vector<TraceSpan> spans = trace.take_spans();
      EXPECT_EQ(products_during(spans, "tokens to experts and back", products.times), each.forward);
      EXPECT_EQ(products_during(spans, "gradients of tokens to experts and back", products.times), each.backward);
    });
  }
}

}  // namespace
}  // namespace megalith::nn
