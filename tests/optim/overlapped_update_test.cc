// Updates of later layers beside the next forward pass: what is left for later, who waits for what, and that no number
// depends on it.
#include "megalith/optim/overlap/overlapped_update.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <set>

#include "megalith/model/pretrained.h"
#include "megalith/optim/overlap/overlap_plan.h"
#include "megalith/optim/rules/sgd.h"
#include "tests/model/model_support.h"
#include "tests/optim/deferred_queue.h"
#include "tests/optim/train_case.h"
#include "tests/support/expect.h"

namespace megalith::testing {
namespace {

using optim::OverlapPlan;
using optim::PartWork;

// ---- The plan ----

constexpr optim::OverlapLimits kNoLimits{};

TEST(OverlapPlan, LeavesAllThatAForwardPassHides) {
  // The embedding has no products; each layer takes as long forward as its update, and the head longer.
  const std::vector<PartWork> parts{{3, 0}, {1, 1}, {1, 1}, {1, 1}, {2, 4}};
  const OverlapPlan plan = plan_overlap(parts, kNoLimits);
  EXPECT_EQ(plan.first, 3U);  // layers 1 and 2 would need two seconds when one has passed; layer 2 and head fit
  // Three seconds of updates: while the embedding and three layers run.
  EXPECT_EQ(plan.spared, 4U);
}

TEST(OverlapPlan, NoPartWaits) {
  for (const double slow : {0.3, 0.8, 1.0, 1.7, 4.0, 100.0}) {
    std::vector<PartWork> parts{{2, 0}};
    for (int layer = 0; layer < 12; ++layer) parts.push_back({.side_seconds = slow, .forward_seconds = 1});
    const OverlapPlan plan = plan_overlap(parts, kNoLimits);
    const auto late = [&](size_t first) {
      double update = 0, forward = 0;
      bool found = false;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (i >= first) update += parts[i].side_seconds;
        found = found || (i >= first && update > forward);
        forward += parts[i].forward_seconds;
      }
      return found;
    };
    ASSERT_GT(plan.first, 0U);
    EXPECT_FALSE(late(plan.first)) << slow;
    EXPECT_TRUE(late(plan.first - 1)) << slow << ": more could be left for later";
    EXPECT_EQ(plan.spared == 0, plan.first == parts.size()) << slow;
  }
}

TEST(OverlapPlan, KeepsToItsLimits) {
  const std::vector<PartWork> parts{{1, 0}, {1, 5}, {1, 5}, {1, 5}};
  EXPECT_EQ(plan_overlap(parts, {}).first, 2U);
  EXPECT_EQ(plan_overlap(parts, {.least_first = 2.5}).first, 3U);
  EXPECT_EQ(plan_overlap(parts, {.least_first = 10}).first, 4U);
  EXPECT_EQ(plan_overlap(parts, {.least_beside = 2}).first, 2U);
  const OverlapPlan none = plan_overlap(parts, {.least_beside = 2.5});
  EXPECT_EQ(none.first, 4U);
  EXPECT_EQ(none.spared, 0U);
  // Frozen layers need nothing.
  EXPECT_EQ(plan_overlap(std::vector<PartWork>{{1, 0}, {0, 5}, {0, 5}}, {}).spared, 0U);
  EXPECT_EQ(plan_overlap(std::span<const PartWork>(), {}).first, 0U);
}

// ---- Pieces and waits ----

std::vector<optim::ForwardPart> parts_of(const model::GptModel& chunk) {
  std::vector<optim::ForwardPart> parts;
  for (const auto& own : chunk.parts()) parts.push_back({{own.begin(), own.end()}, parts.empty() ? 0.0 : 1.0});
  return parts;
}

TrainCase with_buckets(int64_t elements) {
  TrainCase how;
  how.ddp.overlap_grad_reduce = true;
  how.ddp.bucket_size = optim::BucketSize::elements(elements);
  return how;
}

TEST(UpdatePieces, CoverEveryParameterOnceInTheOrderOfForward) {
  for (const char* name : {"llama", "gpt2", "mixtral"})
    for (const int64_t bucket : {int64_t{1} << 40, int64_t{5000}})
      run_training_ranks(golden_folder(name), with_buckets(bucket), [&](const Rank&, TrainingRank& rank) {
        const auto blocks = optim::make_state({&rank.ddp()}, {});
        const auto parts = parts_of(rank.models()[0]);
        const auto pieces = optim::update_pieces(optim::update_blocks(blocks), parts);
        EXPECT_TRUE(std::ranges::is_sorted(pieces, {}, &optim::UpdatePiece::part));
        EXPECT_GE(pieces.size(), parts.size() - 1);
        for (size_t b = 0; b < blocks.size(); ++b) {
          std::vector<int> covered(static_cast<size_t>(blocks[b].main.numel()), 0);
          for (const optim::UpdatePiece& piece : pieces) {
            if (piece.block != b) continue;
            EXPECT_EQ(piece.begin % optim::kAlignElements, 0);
            EXPECT_EQ(piece.end % optim::kAlignElements, 0);
            for (int64_t i = piece.begin; i < piece.end; ++i) ++covered[static_cast<size_t>(i)];
            for (const optim::StatePiece& parameter : blocks[b].pieces) {
              if (parameter.begin < piece.begin || parameter.begin >= piece.end) continue;
              EXPECT_LE(parameter.end, piece.end);
              for (size_t part = 0; part <= piece.part; ++part)
                EXPECT_EQ(std::ranges::count(parts[part].parameters, parameter.parameter) > 0, part == piece.part)
                    << name << ": " << parameter.parameter->spec.name << " and part " << part;
            }
          }
          for (const optim::StatePiece& parameter : blocks[b].pieces)
            for (int64_t i = parameter.begin; i < parameter.end; ++i)
              ASSERT_EQ(covered[static_cast<size_t>(i)], 1) << name << ": " << parameter.parameter->spec.name;
        }
      });
}

// Reads which parts have been updated.
struct Watched {
  std::vector<optim::StateBlock> blocks;
  std::vector<optim::ForwardPart> parts;
  QueueLog log;
  std::unique_ptr<optim::OverlappedUpdate> update;
  std::set<size_t> done{};    // parts
  std::vector<int> limits{};  // multiprocessors of each call

  explicit Watched(TrainingRank& rank)
      : blocks(optim::make_state({&rank.ddp()}, {})), parts(parts_of(rank.models()[0])) {
    update = std::make_unique<optim::OverlappedUpdate>(
        optim::update_blocks(blocks), parts, optim::OverlapSettings::always(), std::make_unique<DeferredQueue>(log));
  }
  void run(int64_t tokens) {
    done.clear();
    limits.clear();
    update->run(tokens, [this](const optim::UpdatePiece& piece, int limit) {
      done.insert(piece.part);
      limits.push_back(limit);
    });
  }
  std::set<size_t> first(size_t count) const {
    std::set<size_t> numbers;
    for (size_t i = 0; i < count; ++i) numbers.insert(i);
    return numbers;
  }
};

TEST(OverlappedUpdate, EachPartWaitsForItsOwn) {
  run_training_ranks(golden_folder("llama"), {}, [&](const Rank&, TrainingRank& rank) {
    Watched watched(rank);
    const auto& parts = rank.models()[0].parts();
    const size_t now = 2;  // the embedding and the first layer are updated at once
    ASSERT_GT(parts.size(), now + 1);
    for (int step = 0; step < 2; ++step) {
      watched.run(/*tokens=*/64);
      EXPECT_EQ(watched.done, watched.first(now));
      EXPECT_EQ(watched.update->beside(), parts.size() - now);
      for (size_t part = 0; part < parts.size(); ++part) {
        watched.update->wait_for(parts[part]);
        EXPECT_EQ(watched.done, watched.first(std::max(now, part + 1)));
        watched.update->wait_for(parts[part]);  // as often as one likes
      }
      EXPECT_EQ(watched.limits.front(), 0);
      EXPECT_EQ(watched.limits.back(), optim::OverlapSettings{}.multiprocessors);
    }
    EXPECT_EQ(watched.log.lists, 2);
  });
}

TEST(OverlappedUpdate, AnyOtherReaderWaitsForAll) {
  run_training_ranks(golden_folder("llama"), {}, [&](const Rank&, TrainingRank& rank) {
    Watched watched(rank);
    const auto& parts = rank.models()[0].parts();
    watched.run(64);
    watched.update->wait_for(parts[0]);
    watched.update->finish();
    EXPECT_EQ(watched.done, watched.first(parts.size()));
    const size_t pieces = watched.log.ran.size();
    watched.run(64);
    EXPECT_EQ(watched.log.ran.size(), pieces);
    watched.run(64);  // finishes the one before
    EXPECT_EQ(watched.log.ran.size(), 2 * pieces);
    watched.update.reset();
    EXPECT_EQ(watched.done, watched.first(parts.size()));
  });
}

// The head also has the embedding, which was updated first: it waits for all nonetheless, since backward follows.
TEST(OverlappedUpdate, TheLastPartWaitsForAllWithATiedHead) {
  run_training_ranks(golden_folder("gpt2"), {}, [&](const Rank&, TrainingRank& rank) {
    Watched watched(rank);
    watched.run(64);
    EXPECT_LT(watched.done.size(), watched.parts.size());
    watched.update->wait_for(rank.models()[0].parts().back());
    EXPECT_EQ(watched.done, watched.first(watched.parts.size()));
  });
}

TEST(OverlappedUpdate, NothingIsLeftWithoutAForwardPassToHideIt) {
  run_training_ranks(golden_folder("llama"), {}, [&](const Rank&, TrainingRank& rank) {
    Watched watched(rank);
    watched.run(/*tokens=*/0);
    EXPECT_EQ(watched.done, watched.first(watched.parts.size()));
    EXPECT_EQ(watched.update->beside(), 0U);
    EXPECT_EQ(watched.log.lists, 0);
    EXPECT_EQ(std::accumulate(watched.limits.begin(), watched.limits.end(), 0), 0);
  });
}

// Real sizes: an update of a few million parameters is too small for a second stream.
TEST(OverlappedUpdate, SmallModelsAreUpdatedAtOnce) {
  run_training_ranks(golden_folder("llama"), {}, [&](const Rank&, TrainingRank& rank) {
    QueueLog log;
    const auto blocks = optim::make_state({&rank.ddp()}, {});
    optim::OverlappedUpdate update(optim::update_blocks(blocks), parts_of(rank.models()[0]), {},
                                   std::make_unique<DeferredQueue>(log));
    update.run(1 << 14, [](const optim::UpdatePiece&, int) {});
    EXPECT_EQ(update.beside(), 0U);
  });
}

// ---- Training ----

enum class Waits { kAll, kNone };

// As train() of train_case.h, with updates that run only when somebody waits for them.
TrainResult train_overlapped(const char* name, const TrainBatch& batch, const TrainCase& how, Waits waits,
                             QueueLog& log) {
  const auto folder = golden_folder(name);
  TrainResult result{{}, {}, whole_tensors(model::read_model_config(folder))};
  run_training_ranks(folder, how, [&](const Rank& rank, TrainingRank& training) {
    optim::Optimizer& optimizer = training.optimizer();
    QueueLog own;
    optimizer.overlap_with_forward(parts_of(training.models()[0]), optim::OverlapSettings::always(),
                                   std::make_unique<DeferredQueue>(own));
    if (waits == Waits::kAll)
      training.models()[0].set_before_part(
          [&](std::span<nn::Parameter* const> part) { optimizer.wait_for_params(part); });
    optimizer.expect_tokens(64);
    std::vector<double> losses, norms;
    for (int step = 0; step < how.steps; ++step) {
      losses.push_back(training.accumulate(batch));
      norms.push_back(training.step().grad_norm.value_or(-1));
    }
    losses.push_back(training.loss(batch));
    optimizer.finish_update();
    fill_in(result.weights, training.models(), [](const nn::Parameter& p) { return p.value.detach(); });
    training.models()[0].set_before_part(nullptr);
    if (rank.rank != 0) return;
    result.losses = losses;
    result.grad_norms = norms;
    log = own;
  });
  return result;
}

void expect_same_result(const TrainResult& actual, const TrainResult& expected, const std::string& what) {
  EXPECT_EQ(actual.losses, expected.losses) << what;
  EXPECT_EQ(actual.grad_norms, expected.grad_norms) << what;
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (const auto& [name, tensor] : expected.weights)
    EXPECT_TRUE(actual.weights.at(name).equal(tensor)) << what << ": " << name;
}

class OverlappedTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(OverlappedTraining, HasTheBitsOfUpdatesAtOnce) {
  const TrainBatch batch = random_batch(8, 12, 200);
  std::vector<TrainCase> cases(5);
  cases[1] = with_buckets(5000);
  cases[2].micro_batches = 2;
  cases[2].optimizer.clip_grad = 0.01;
  cases[3].dp = 2;
  cases[4].options.dtype = at::kBFloat16;
  cases[4].optimizer.formats = {.remainders = true,
                                .states = {{"exp_avg", at::kBFloat16}, {"exp_avg_sq", at::kFloat8_e4m3fn}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    QueueLog log;
    const TrainResult expected = train(golden_folder(GetParam()), batch, cases[i]);
    expect_same_result(train_overlapped(GetParam(), batch, cases[i], Waits::kAll, log), expected,
                       fmt::format("case {}", i));
    EXPECT_EQ(log.lists, cases[i].steps) << i;
    EXPECT_GE(log.ran.size(), static_cast<size_t>(2 * cases[i].steps)) << i;
  }
}

// The tests above would fail for a forward pass that does not wait.
TEST_P(OverlappedTraining, AMissingWaitIsNoticed) {
  const TrainBatch batch = random_batch(8, 12, 200);
  QueueLog log;
  const TrainResult expected = train(golden_folder(GetParam()), batch, {});
  const TrainResult actual = train_overlapped(GetParam(), batch, {}, Waits::kNone, log);
  EXPECT_EQ(actual.losses[0], expected.losses[0]);
  for (size_t i = 1; i < expected.losses.size(); ++i) EXPECT_NE(actual.losses[i], expected.losses[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Of, OverlappedTraining, ::testing::Values("llama", "gpt2", "mixtral"),
                         [](const auto& test) { return std::string(test.param); });

// Functions of the optimizer that read or write parameters or state wait by themselves.
TEST(OverlappedUpdate, TheOptimizerWaitsBeforeItReads) {
  const TrainBatch batch = random_batch(8, 12, 200);
  using Body = std::function<void(TrainingRank&, bool left)>;
  const auto run = [&](bool overlaps, const Body& body) {
    run_training_ranks(golden_folder("llama"), {}, [&](const Rank&, TrainingRank& training) {
      QueueLog log;
      if (overlaps)
        training.optimizer().overlap_with_forward(parts_of(training.models()[0]), optim::OverlapSettings::always(),
                                                  std::make_unique<DeferredQueue>(log));
      training.optimizer().expect_tokens(64);
      training.accumulate(batch);
      training.step();
      EXPECT_TRUE(log.ran.empty());
      body(training, overlaps);
      EXPECT_EQ(log.ran.empty(), !overlaps) << "nothing was left for later";
    });
  };
  std::map<std::string, at::Tensor> states[2];
  double norms[2];
  for (const bool overlaps : {false, true}) {
    run(overlaps, [&](TrainingRank& rank, bool left) {
      for (const auto& part : rank.optimizer().sharded_state()) states[left ? 1 : 0][part.name] = part.data().clone();
    });
    run(overlaps, [&](TrainingRank& rank, bool left) { norms[left ? 1 : 0] = rank.optimizer().parameter_norm(); });
    run(overlaps, [&](TrainingRank& rank, bool) { rank.optimizer().norm_terms(); });
    run(overlaps, [&](TrainingRank& rank, bool) { rank.optimizer().reload_main_params(); });
  }
  EXPECT_EQ(norms[0], norms[1]);
  ASSERT_EQ(states[0].size(), states[1].size());
  for (const auto& [name, tensor] : states[0]) EXPECT_TRUE(states[1].at(name).equal(tensor)) << name;
}

TEST(OverlappedUpdate, OnlyWhereAnOptimizerCan) {
  const auto can = [&](const TrainCase& how) {
    bool result = false;
    run_training_ranks(golden_folder("llama"), how, [&](const Rank& rank, TrainingRank& training) {
      if (rank.rank == 0) result = training.optimizer().can_overlap();
    });
    return result;
  };
  EXPECT_TRUE(can({}));
  EXPECT_TRUE(can({.dp = 2}));
  EXPECT_TRUE(
      can({.ddp = {.use_distributed_optimizer = true, .per_token_loss = true}}));  // one rank: nothing to gather
  EXPECT_FALSE(can({.dp = 2, .ddp = {.use_distributed_optimizer = true, .per_token_loss = true}}));
  TrainCase offloaded, sgd;
  offloaded.optimizer.offload_fraction = 0.5;
  sgd.optimizer.rule = std::make_shared<optim::Sgd>();
  EXPECT_FALSE(can(offloaded));
  EXPECT_FALSE(can(sgd));
}

}  // namespace
}  // namespace megalith::testing
