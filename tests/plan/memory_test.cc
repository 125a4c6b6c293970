// The planner's arithmetic of memory: against what runs hold, and against itself.
#include "megalith/plan/memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "megalith/model/families/family.h"
#include "megalith/model/virtual_models.h"
#include "megalith/plan/chunk_walk_internal.h"
#include "tests/plan/memory_case.h"
#include "tests/support/golden.h"
#include "tests/support/golden_model.h"
#include "tests/support/run_ranks.h"

namespace megalith::plan {
namespace {

using testing::MeasuredMemory;
using testing::memory_case;
using testing::MemoryCase;

constexpr double kMiB = 1 << 20;

uint64_t first_seed() {
  const char* given = std::getenv("MEGALITH_PLAN_SEED");
  return given == nullptr ? 1 : static_cast<uint64_t>(std::atoll(given));
}

struct Comparison {
  double planned = 0, measured = 0;
  double error() const { return planned / measured - 1; }
};

// The fullest rank of each stage.
Comparison compare(const MemoryCase& how, bool print) {
  const std::vector<RankMemory> planned = plan_memory(how.shape());
  const std::vector<MeasuredMemory> measured = testing::measure_memory(how);
  Comparison worst;
  for (const RankMemory& rank : planned) {
    Comparison one{.planned = rank.step()};
    double always = 0, making = 0;
    for (const MeasuredMemory& m : measured)
      if (m.pp_rank == rank.pp_rank) {
        one.measured = std::max(one.measured, m.step);
        always = std::max(always, m.always);
        making = std::max(making, m.making);
      }
    if (print)
      fmt::print(
          "    stage {}: planned {:.2f} MiB ({:.2f} always, {:.2f} + {:.2f} + {:.2f}), measured {:.2f} ({:.2f} always),"
          " {:+.1f} %; making {:.2f}, measured {:.2f}\n",
          rank.pp_rank, one.planned / kMiB, rank.always() / kMiB, rank.at_peak[0] / kMiB, rank.at_peak[1] / kMiB,
          rank.at_peak[2] / kMiB, one.measured / kMiB, always / kMiB, 100 * one.error(), rank.making / kMiB,
          making / kMiB);
    if (std::abs(one.error()) >= std::abs(worst.error()) || worst.measured == 0) worst = one;
  }
  return worst;
}

TEST(PlannedMemory, IsWhatRunsHold) {
  const int cases = 24;
  const bool details = std::getenv("MEGALITH_PLAN_DETAILS") != nullptr;
  fmt::print("{:<58} {:>9} {:>9} {:>7}\n", "case", "planned", "measured", "error");
  for (uint64_t seed = first_seed(); seed < first_seed() + cases; ++seed) {
    const MemoryCase how = testing::random_memory_case(seed);
    const Comparison worst = compare(how, details);
    fmt::print("{:<58} {:>5.1f} MiB {:>5.1f} MiB {:>+6.1f}%\n", how.name, worst.planned / kMiB, worst.measured / kMiB,
               100 * worst.error());
    EXPECT_LE(std::abs(worst.error()), 0.05) << "seed " << seed << ": " << how.name;
  }
}

// What forward keeps, backward gives back: to the byte.
TEST(PlannedMemory, IsGivenBackByBackward) {
  for (uint64_t seed = 100; seed < 300; ++seed) {
    const MemoryCase how = testing::random_memory_case(seed);
    const RunShape run = how.shape();
    const LayerSizes sizes(run);
    for (const layout::Stage& stage : run.split().stages()) {
      const ChunkFootprints chunk = chunk_footprints(run, sizes, stage);
      const double input = stage.has_embedding() ? 0 : sizes.stream(), output = stage.has_loss() ? 0 : sizes.stream();
      // The input and the output's gradient are the caller's; the output has gone meanwhile.
      const double left = total(chunk.forward.left) + total(chunk.backward.left);
      EXPECT_NEAR(left, output, 1) << how.name << ", input " << input;
    }
  }
}

// The sizes of every parameter, on every rank, for every family.
TEST(PlannedMemory, CountsTheParametersOfEveryFamily) {
  for (const std::string& name : testing::golden_model_names()) {
    const model::ModelConfig model = model::read_model_config(testing::golden_dir() / "hf" / name);
    for (const auto& [tp, pp, ep] :
         {std::tuple(1, 1, 1), std::tuple(2, 1, 1), std::tuple(1, 2, 1), std::tuple(2, 1, 2)}) {
      if (ep > 1 && !model.moe) continue;
      if (model.delta_net && model.delta_net->key_heads % tp != 0) continue;
      const MemoryCase how = memory_case(
          name, model, {fmt::format("--tp={}", tp), fmt::format("--pp={}", pp), fmt::format("--ep={}", ep), "--etp=1"},
          tp * pp, 64);
      const RunShape run = how.shape();
      const layout::LayerSplit split = run.split();
      testing::run_ranks(how.world, [&](const testing::Rank& rank) {
        parallel::ParallelContext context(rank.world, layout::RankGrid(run.grid));
        model::ModelOptions options = run.options;
        options.device = at::kMeta;
        const model::VirtualModels models(how.model, options,
                                          model::chunk_places(how.args.pipeline, how.model, context), context);
        for (size_t chunk = 0; chunk < models.size(); ++chunk) {
          std::vector<ParameterSize> real;
          for (const auto& p : models[chunk].parameters().all())
            real.push_back({p->value.numel(), p->expert, p->tied_over_stages, p->buffer});
          EXPECT_EQ(real, stage_parameters(run, split.stage(context.place().pp_rank, static_cast<int>(chunk))))
              << name << " tp " << tp << " pp " << pp;
        }
      });
    }
  }
}

}  // namespace
}  // namespace megalith::plan
