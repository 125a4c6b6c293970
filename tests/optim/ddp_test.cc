// Gradient buffers on small parameters made by hand: what is summed, scaled, checked and refused.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "megalith/base/trace.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/optim/buffer_rules.h"
#include "megalith/optim/finalize.h"
#include "megalith/optim/gradient_check.h"
#include "megalith/optim/param_buffer.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::optim {
namespace {

using testing::expect_close;
using testing::expect_contains;
using testing::Rank;
using testing::run_ranks;

// Two linear weights and a bias; the loss of rank r is (r+1) · Σ over parameters of their sum.
struct Toy {
  // `second`: what is said of the second tensor, beside its name.
  explicit Toy(int tensors = 3, const nn::ParameterSpec& second = {}) : set(at::kFloat, at::kCPU) {
    const nn::ParameterScope root(set);
    for (int i = 0; i < tensors; ++i) {
      nn::ParameterSpec spec = i == 1 ? second : nn::ParameterSpec{};
      spec.name = fmt::format("p{}.weight", i);
      nn::Parameter& p = root.add(std::move(spec), {3, 5 + i});
      const at::NoGradGuard no_grad;
      p.value.fill_(i + 1);
    }
  }
  std::vector<nn::Parameter*> list() const {
    std::vector<nn::Parameter*> all;
    for (const auto& p : set.all()) all.push_back(p.get());
    return all;
  }
  at::Tensor loss(double factor) const {
    at::Tensor sum = at::zeros({});
    for (const auto& p : set.all())
      if (p->value.requires_grad()) sum = sum + p->value.sum() * factor;
    return sum;
  }
  nn::Parameter& operator[](size_t i) const { return *set.all()[i]; }
  nn::ParameterSet set;
};

parallel::ParallelContext context_of(const Rank& r, layout::GridShape shape = {}) {
  shape.world_size = r.size;
  return {r.world, layout::RankGrid(shape)};
}

double first(const at::Tensor& t) { return t.reshape(-1)[0].item<double>(); }

TEST(Ddp, ParametersKeepTheirValuesAndBecomeViews) {
  run_ranks(1, [](const Rank& r) {
    const auto context = context_of(r);
    const Toy toy;
    const DistributedDataParallel ddp(toy.list(), {}, context);
    const ParamBuffer& buffer = *ddp.buffers().at(0);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(toy[i].value.eq(static_cast<double>(i + 1)).all().item<bool>());
      EXPECT_TRUE(toy[i].value.is_leaf() && toy[i].value.requires_grad());
      EXPECT_TRUE(toy[i].value.is_alias_of(buffer.params()));
      EXPECT_TRUE(toy[i].grad.main_grad.is_alias_of(buffer.grads()));
    }
  });
}

struct Scaling {
  std::string name;
  DdpSettings settings;
  double expected;  // gradient after the reduction over two ranks whose own are 1 and 2
};

class DdpScaling : public ::testing::TestWithParam<Scaling> {};

TEST_P(DdpScaling, IsWhatTheSettingsSay) {
  for (const bool distributed : {false, true})
    for (const bool overlap : {false, true})
      run_ranks(2, [&](const Rank& r) {
        const auto context = context_of(r);
        const Toy toy;
        DdpSettings settings = GetParam().settings;
        settings.use_distributed_optimizer = distributed;
        settings.overlap_grad_reduce = overlap;
        settings.bucket_size = BucketSize::elements(64);
        DistributedDataParallel ddp(toy.list(), settings, context);
        for (int step = 0; step < 3; ++step) {
          ddp.zero_grad();
          {
            const DistributedDataParallel::NoSync scope(ddp);
            toy.loss(r.rank + 1).backward();
          }
          toy.loss(r.rank + 1).backward();
          ddp.finish_grad_sync();
          const ParamBuffer& buffer = *ddp.buffers()[0];
          const at::Tensor expected = at::zeros_like(buffer.grads());  // padding is zero
          for (const BufferLayout::Item& item : buffer.layout().items)
            expected.narrow(0, item.begin, item.end - item.begin).fill_(2 * GetParam().expected);  // two micro-batches
          for (int bucket = 0; bucket < static_cast<int>(buffer.layout().buckets.size()); ++bucket)
            EXPECT_TRUE(buffer.own(buffer.grads(), bucket).equal(buffer.own(expected, bucket))) << bucket;
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Modes, DdpScaling,
                         ::testing::Values(Scaling{"Default", {}, 1.5},
                                           Scaling{"InCollective", {.average_in_collective = true}, 1.5},
                                           Scaling{"PerToken", {.per_token_loss = true}, 3.0}),
                         [](const auto& test) { return test.param.name; });

TEST(Ddp, ExpertsAreSummedOverTheirOwnGroupAndDividedByAllReplicas) {
  for (const bool in_collective : {false, true})
    run_ranks(4, [&](const Rank& r) {  // dp 4, ep 2: experts are replicated on 2 ranks
      const auto context = context_of(r, {.ep = 2});
      const Toy toy(2, {.expert = true});
      DistributedDataParallel ddp(toy.list(), {.average_in_collective = in_collective}, context);
      ASSERT_EQ(ddp.buffers().size(), 2U);
      toy.loss(r.rank + 1).backward();
      ddp.finish_grad_sync();
      EXPECT_DOUBLE_EQ(first(toy[0].grad.main_grad), (1 + 2 + 3 + 4) / 4.0);
      double expert_sum = 0;
      for (const int rank : context.edp().ranks()) expert_sum += rank + 1;
      EXPECT_DOUBLE_EQ(first(toy[1].grad.main_grad), expert_sum / 4);
    });
}

TEST(Ddp, AParameterWithoutAGradientCountsAsZero) {
  run_ranks(2, [](const Rank& r) {
    const auto context = context_of(r);
    const Toy toy;
    DistributedDataParallel ddp(toy.list(), {.overlap_grad_reduce = true, .bucket_size = BucketSize::elements(1)},
                                context);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      at::Tensor loss = toy[0].value.sum();
      if (r.rank == 0) loss = loss + toy[2].value.sum();  // on one rank only
      loss.backward();
      ddp.finish_grad_sync();
      EXPECT_EQ(first(toy[0].grad.main_grad), 1);
      EXPECT_EQ(first(toy[1].grad.main_grad), 0);
      EXPECT_EQ(first(toy[2].grad.main_grad), 0.5);
    }
  });
}

TEST(Ddp, FrozenParametersHaveNoPart) {
  run_ranks(1, [](const Rank& r) {
    const auto context = context_of(r);
    const Toy toy;
    toy[1].value.requires_grad_(false);
    DistributedDataParallel ddp(toy.list(), {}, context);
    EXPECT_EQ(ddp.buffers()[0]->parameters().size(), 2U);
    EXPECT_FALSE(toy[1].grad.main_grad.defined());
    toy.loss(1).backward();
    ddp.finish_grad_sync();
  });
}

TEST(Ddp, BucketsLeaveDuringBackwardFromTheSecondStepOn) {
  run_ranks(2, [](const Rank& r) {
    const auto context = context_of(r);
    const Toy toy;
    DistributedDataParallel ddp(toy.list(), {.overlap_grad_reduce = true, .bucket_size = BucketSize::elements(1)},
                                context);
    const int buckets = static_cast<int>(ddp.buffers()[0]->layout().buckets.size());
    ASSERT_EQ(buckets, 3);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      toy.loss(1).backward();
      EXPECT_EQ(ddp.buckets_started(), step == 0 ? 0 : buckets);
      ddp.finish_grad_sync();
    }
    ddp.zero_grad();
    const DistributedDataParallel::NoSync scope(ddp);
    toy.loss(1).backward();
    EXPECT_EQ(ddp.buckets_started(), 0);
  });
}

// The sum over optimizer instances of one bucket does not wait for that of the bucket before.
TEST(Ddp, InstancesSumTheirBucketsWithoutWaitingForOneAnother) {
  run_ranks(4, [](const Rank& r) {
    const auto context = context_of(r, {.num_distributed_optimizer_instances = 2});
    const Toy toy;
    DistributedDataParallel ddp(
        toy.list(),
        {.use_distributed_optimizer = true, .overlap_grad_reduce = true, .bucket_size = BucketSize::elements(1)},
        context);
    const ParamBuffer& buffer = *ddp.buffers()[0];
    TraceRecorder recorder;
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      toy.loss(r.rank + 1).backward();
      r.world.set_trace(&recorder);
      recorder.start_timeline();
      ddp.finish_grad_sync();
      recorder.stop_timeline();
      r.world.set_trace(nullptr);
      EXPECT_EQ(ddp.buckets_reduced(), 3);
      const double mean = buffer.shard_rank() == 0 ? 2.5 : 0;  // the other shard of such small buckets is padding
      for (int bucket = 0; bucket < 3; ++bucket) EXPECT_EQ(first(buffer.own(buffer.grads(), bucket)), mean);
      std::vector<TraceSpan> sums;
      for (const TraceSpan& span : recorder.take_spans())
        if (std::string_view(span.label.purpose) == "gradients over optimizer instances") sums.push_back(span);
      ASSERT_EQ(sums.size(), 3U);
      std::ranges::sort(sums, {}, &TraceSpan::begin_ns);
      EXPECT_LE(sums[2].begin_ns, sums[0].end_ns) << "all are started before the first is waited for";
    }
  });
}

TEST(Ddp, NamesTheParameterWhoseGradientIsNotFinite) {
  for (const double odd : {std::nan(""), HUGE_VAL})
    run_ranks(1, [odd](const Rank& r) {
      const auto context = context_of(r);
      const Toy toy;
      DistributedDataParallel ddp(toy.list(), {}, context);
      (toy.loss(1) + toy[1].value.sum() * odd).backward();
      try {
        ddp.finish_grad_sync();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const NonFiniteGradient& error) {
        expect_contains(error.what(), "p1.weight");
        expect_contains(error.what(), "18 elements of 18");
      }
    });
}

// As on CUDA: no reduction waits for a look, and the rank that made the NaN is still the one that tells.
TEST(Ddp, NamesTheParameterLater) {
  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded);
    run_ranks(2, [sharded](const Rank& r) {
      const auto context = context_of(r);
      const Toy toy;
      DistributedDataParallel ddp(toy.list(), {.use_distributed_optimizer = sharded, .checks_later = true}, context);
      int told = 0;
      ddp.set_gradient_check({.look = [&told](const BucketGradients& gradients) {
        told += gradients.finite ? 0 : 1;
        require_finite(gradients);
      }});
      (toy.loss(1) + toy[1].value.sum() * (r.rank == 1 ? std::nan("") : 1)).backward();
      ddp.finish_grad_sync();
      EXPECT_EQ(told, 0);
      std::string said;
      try {
        ddp.check_gradients();
      } catch (const NonFiniteGradient& error) {
        said = error.what();
      }
      EXPECT_EQ(told, r.rank);
      EXPECT_EQ(said.empty(), r.rank == 0);
      for (const char* part : {"p1.weight", "on rank 1", "18 elements of 18", "before it was reduced"})
        if (r.rank == 1) expect_contains(said, part);
      ddp.zero_grad();  // the next step begins again
      toy.loss(1).backward();
      ddp.finish_grad_sync();
      EXPECT_NO_THROW(ddp.check_gradients());
    });
  }
}

TEST(Ddp, ReadersSeeGradientsBeforeTheReduction) {
  run_ranks(2, [](const Rank& r) {
    const auto context = context_of(r);
    const Toy toy;
    DistributedDataParallel ddp(toy.list(), {.checks_later = true}, context);
    std::vector<double> seen;
    ddp.set_gradient_check(
        {.look = [&seen](const BucketGradients& gradients) { seen.push_back(gradients.values().sum().item<double>()); },
         .reads = true});
    toy.loss(r.rank + 1).backward();
    ddp.finish_grad_sync();
    ddp.check_gradients();
    // 54 numbers, each r + 1, and half of it for the average of two.
    EXPECT_EQ(seen, std::vector<double>{27.0 * (r.rank + 1)});
  });
}

TEST(Ddp, ContinuesWithGradientsThatAreNotFiniteWhenAsked) {
  run_ranks(1, [](const Rank& r) {
    const auto context = context_of(r);
    const Toy toy;
    DistributedDataParallel ddp(toy.list(), {.check_for_nan = false}, context);
    (toy.loss(1) * HUGE_VAL).backward();
    ddp.finish_grad_sync();
    EXPECT_TRUE(toy[0].grad.main_grad.isinf().all().item<bool>());
  });
}

TEST(Ddp, AGradientThatComesTooLateIsAnError) {
  run_ranks(1, [](const Rank& r) {
    const auto context = context_of(r);
    const Toy toy;
    DistributedDataParallel ddp(toy.list(), {.overlap_grad_reduce = true}, context);
    toy.loss(1).backward();
    ddp.finish_grad_sync();
    try {
      toy.loss(1).backward();  // without zero_grad
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::exception& error) {
      expect_contains(error.what(), "after its bucket had been reduced");
    }
  });
}

TEST(Ddp, Bf16GradientsAreSummedInBf16) {
  run_ranks(2, [](const Rank& r) {
    const auto context = context_of(r);
    nn::ParameterSet set(at::kBFloat16, at::kCPU);
    nn::Parameter& p = nn::ParameterScope(set).add({.name = "w"}, {4, 4});
    DistributedDataParallel ddp({&p}, {.per_token_loss = true, .grad_dtype = at::kBFloat16}, context);
    EXPECT_EQ(p.grad.main_grad.scalar_type(), at::kBFloat16);
    (p.value.sum() * (r.rank + 1)).backward();
    ddp.finish_grad_sync();
    EXPECT_EQ(first(p.grad.main_grad), 3);
  });
}

TEST(Ddp, BadSettingsAreNamed) {
  const auto message = [](const DdpSettings& settings) -> std::string {
    try {
      settings.validate();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  expect_contains(message({.bucket_size = BucketSize::elements(-5)}), "ddp_bucket_size is -5");
  expect_contains(message({.bucket_size = BucketSize::count(0)}), "ddp_num_buckets is 0");
  expect_contains(message({.average_in_collective = true, .per_token_loss = true}), "calculate_per_token_loss");
  expect_contains(message({.grad_dtype = at::kHalf}), "Half");
}

TEST(DdpSettings, OnlyTheFirstChunkIsCutAndOnlyToOverlap) {
  const DdpSettings overlapping{.overlap_grad_reduce = true};
  EXPECT_TRUE(settings_of_chunk(overlapping, 0).bucketing);
  EXPECT_FALSE(settings_of_chunk(overlapping, 1).bucketing);
  EXPECT_FALSE(settings_of_chunk({}, 0).bucketing);
}

TEST(DdpSettings, SizesOfBuckets) {
  const auto elements = [](const BucketSize& size, const BufferPlace& place) {
    return buffer_rules({.bucket_size = size}, place).bucket_elements;
  };
  EXPECT_EQ(elements({}, {.elements = 900, .replicas = 2}), 1'500'000);
  EXPECT_EQ(elements({}, {.elements = 900, .replicas = 2, .cuda = true}), 40'000'000);
  EXPECT_EQ(elements({}, {.elements = 900, .replicas = 64, .cuda = true}), 64'000'000);
  EXPECT_EQ(elements(BucketSize::elements(77), {.elements = 900}), 77);
  EXPECT_EQ(elements(BucketSize::count(3), {.elements = 900}), 300);
  EXPECT_EQ(elements(BucketSize::count(3), {.elements = 2}), 1);
}

// Finalize: replicated parameters of which each tp rank saw a part, and tokens.
TEST(FinalizeGradients, SumsPartsOverTpAndDividesByTokens) {
  run_ranks(4, [](const Rank& r) {  // tp 2, dp 2
    const auto context = context_of(r, {.tp = 2});
    const Toy toy(2, {.partial_grad_over_tp = true});
    DistributedDataParallel ddp(toy.list(), {.per_token_loss = true}, context);
    toy.loss(r.rank + 1).backward();
    const int dp_rank = context.dp().rank();
    finalize_gradients({&ddp}, context, 10 * (dp_rank + 1));
    const int tp_rank = context.tp().rank();
    expect_close(first(toy[0].grad.main_grad), (1 + tp_rank + 3 + tp_rank) / 30.0, "split");
    expect_close(first(toy[1].grad.main_grad), (1 + 2 + 3 + 4) / 30.0, "replicated");
  });
}

}  // namespace
}  // namespace megalith::optim
