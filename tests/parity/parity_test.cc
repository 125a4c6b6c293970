// A seeded sample of the lattice: loss, token losses, gradients and three steps of SGD in any layout are those of a
// plain model on one rank.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/parity/parity_run.h"

namespace megalith::testing {
namespace {

constexpr size_t kSampled = 96;
constexpr uint64_t kSeed = 20;

TEST(ParityLattice, HasEnoughPoints) {
  std::vector<ParityPoint> points = lattice_points();
  EXPECT_EQ(points.size(), 3048);
  for (ParityPoint& point : border_points()) points.push_back(std::move(point));
  EXPECT_EQ(points.size(), 3048 + 352);
  for (ParityPoint& point : vocabulary_points()) points.push_back(std::move(point));
  EXPECT_EQ(points.size(), 3048 + 352 + 168);
  std::set<std::string> names;
  for (const ParityPoint& point : points) names.insert(point.name());
  EXPECT_EQ(names.size(), points.size());
}

// Whatever the seed: every size of every axis and every family is met.
TEST(ParityLattice, SampleMeetsEveryAxis) {
  std::set<std::string> met;
  for (const ParityPoint& p : sample_points(kSeed, kSampled)) {
    met.insert({p.family, p.cp > 1 ? p.cp_comm_type : "no cp", fmt::format("tp {}", p.tp), fmt::format("pp {}", p.pp),
                fmt::format("cp {}", p.cp), fmt::format("dp {}", p.dp), fmt::format("vpp {}", p.vpp),
                p.sequence_parallel ? "sp" : "no sp", p.packed ? "packed" : "padded",
                p.recompute ? "recompute" : "keep", p.distributed_optimizer ? "sharded" : "whole",
                fmt::format("ep {}", p.ep), fmt::format("etp {}", p.etp),
                p.all_gather_experts ? "gather" : "exchange"});
  }
  const size_t values = parity_families().size() + 5 + 3 + 3 + 3 + 2 + 2 + 4 * 2 + 3 + 2 + 2;
  EXPECT_EQ(met.size(), values);
}

// In quarters, so that they can run side by side.
class ParitySample : public ::testing::TestWithParam<size_t> {};

TEST_P(ParitySample, EqualsThePlainModel) {
  const std::vector<ParityPoint> all = sample_points(kSeed, kSampled);
  std::vector<ParityPoint> own;
  for (size_t i = GetParam(); i < all.size(); i += 4) own.push_back(all[i]);
  ParityReport report;
  report.run(own);
  fmt::print("{}", report.summary(lattice_points().size()));
}

INSTANTIATE_TEST_SUITE_P(Quarters, ParitySample, ::testing::Range<size_t>(0, 4));

// Tokens that layers outside of attention read across the borders of slices, in every kind of layout with cp.
TEST(ParityBorders, MultiTokenPredictionOverSlices) {
  const std::string mla = "deepseek_v3_mtp", glm = "glm4_moe_mtp", dense = "megatron_gpt_mtp";
  ParityReport report;
  report.run({
      {.family = mla, .cp = 2},
      {.family = mla, .cp = 4, .packed = true, .cp_comm_type = "a2a+p2p"},
      {.family = mla, .tp = 2, .cp = 2, .ep = 2, .sequence_parallel = true, .packed = true, .cp_comm_type = "a2a"},
      {.family = mla, .pp = 2, .vpp = 2, .cp = 2, .recompute = true, .cp_comm_type = "all_gather"},
      {.family = glm, .cp = 2, .ep = 2, .packed = true},
      {.family = glm, .tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true},
      {.family = dense, .cp = 4, .packed = true},
      {.family = dense, .tp = 2, .cp = 2, .recompute = true},
      {.family = dense, .pp = 2, .cp = 2, .dp = 2, .distributed_optimizer = true, .cp_comm_type = "a2a"},
  });
  fmt::print("{}", report.summary(border_points().size()));
}

TEST(ParityBorders, DeltaNetsOverSlices) {
  const std::string family = "qwen3_next";
  ParityReport report;
  report.run({
      {.family = family, .cp = 2},
      {.family = family, .cp = 4, .packed = true, .cp_comm_type = "a2a+p2p"},
      {.family = family, .cp = 4, .recompute = true, .cp_comm_type = "all_gather"},
      {.family = family, .tp = 2, .cp = 2, .sequence_parallel = true, .packed = true, .cp_comm_type = "a2a"},
      {.family = family, .tp = 2, .cp = 2, .ep = 2, .etp = 2, .sequence_parallel = true, .recompute = true},
      {.family = family, .pp = 2, .cp = 2, .packed = true},
      {.family = family, .pp = 2, .vpp = 2, .cp = 2, .dp = 2, .ep = 2, .distributed_optimizer = true},
  });
  fmt::print("{}", report.summary(border_points().size()));
}

// The text models of qwen3_5, whose delta nets keep their input projections apart.
TEST(ParityDeltaNets, TextOfQwen35) {
  const std::string dense = "qwen3_5_text", experts = "qwen3_5_moe_text";
  ParityReport report;
  report.run({
      {.family = dense},
      {.family = dense, .tp = 2, .dp = 2, .packed = true, .distributed_optimizer = true},
      {.family = dense, .tp = 4, .sequence_parallel = true, .recompute = true},
      {.family = dense, .pp = 2, .vpp = 2, .cp = 2, .packed = true},
      {.family = experts, .tp = 2, .cp = 2, .ep = 2, .sequence_parallel = true, .packed = true},
      {.family = experts, .tp = 2, .pp = 2, .etp = 2, .sequence_parallel = true},
      {.family = experts, .pp = 2, .vpp = 2, .cp = 2, .dp = 2, .ep = 2, .distributed_optimizer = true},
  });
  fmt::print("{}", report.summary(7));
}

// Rows that a run adds (resize_vocab, add_tokens), with tied and untied heads. tp 4 does not divide them: the last rank
// has padding.
TEST(ParityVocabulary, GrownEmbeddings) {
  const std::string untied = "llama_grown", tied = "qwen2_grown", gpt2 = "gpt2_grown";
  ParityReport report;
  report.run({
      {.family = untied},
      {.family = untied, .tp = 2, .sequence_parallel = true},
      {.family = untied, .tp = 4, .packed = true},
      {.family = untied, .pp = 2},
      {.family = untied, .cp = 2, .packed = true},
      {.family = untied, .dp = 2, .distributed_optimizer = true},
      {.family = untied, .tp = 2, .pp = 2, .dp = 2, .distributed_optimizer = true},
      {.family = tied},
      {.family = tied, .tp = 2},
      {.family = tied, .pp = 2, .vpp = 2},
      {.family = tied, .cp = 2, .dp = 2},
      {.family = tied, .tp = 4, .pp = 2, .sequence_parallel = true, .distributed_optimizer = true},
      {.family = gpt2, .tp = 2, .pp = 2, .cp = 2},
  });
  fmt::print("{}", report.summary(vocabulary_points().size()));
}

TEST(ParityVocabulary, SmoothedLabels) {
  const std::string untied = "llama_smooth", tied = "qwen2_smooth";
  ParityReport report;
  report.run({
      {.family = untied},
      {.family = untied, .tp = 2, .sequence_parallel = true, .packed = true},
      {.family = untied, .pp = 2, .cp = 2},
      {.family = tied, .tp = 4, .dp = 2, .distributed_optimizer = true},
      {.family = tied, .pp = 2, .vpp = 2, .packed = true},
  });
  fmt::print("{}", report.summary(vocabulary_points().size()));
}

// Collectives of tensor parallelism in slices beside the products: biases, experts with shared ones, latent attention,
// prediction layers, recomputation, virtual stages, packed sequences.
TEST(ParityTensorParallelOverlap, SlicesGiveTheNumbersOfTheWhole) {
  ParityReport report;
  std::vector<ParityPoint> points{
      {.family = "llama", .tp = 4, .packed = true, .recompute = true},
      {.family = "qwen2", .tp = 2, .pp = 2, .vpp = 2, .distributed_optimizer = true},
      {.family = "gpt2", .tp = 2},
      {.family = "qwen2_moe", .tp = 2, .ep = 2},
      {.family = "deepseek_v3_mtp", .tp = 2, .cp = 2},
  };
  for (ParityPoint& point : points) point.sequence_parallel = point.tp_overlap = true;
  report.run(points);
  fmt::print("{}", report.summary(lattice_points().size()));
}

// Points in which tokens travel to experts while another micro-batch computes: shared experts, latent attention, tensor
// and context parallelism, virtual stages, recomputation, prediction layers.
std::vector<ParityPoint> expert_overlap_points() {
  std::vector<ParityPoint> points{
      {.family = "qwen3_moe", .dp = 2, .ep = 2},
      {.family = "qwen3_moe", .tp = 2, .ep = 2, .sequence_parallel = true, .packed = true},
      {.family = "glm4_moe", .dp = 2, .ep = 2, .distributed_optimizer = true},
      {.family = "deepseek_v3", .pp = 2, .vpp = 2, .dp = 2, .ep = 2, .packed = true},
      {.family = "mixtral", .pp = 2, .vpp = 2, .cp = 2, .ep = 2, .recompute = true},
      {.family = "qwen2_moe", .tp = 2, .dp = 2, .ep = 2, .etp = 2, .sequence_parallel = true},
      {.family = "qwen2_moe", .dp = 2, .ep = 2, .recompute = true, .distributed_optimizer = true},
      {.family = "deepseek_v3_mtp", .cp = 2, .ep = 2},
  };
  for (ParityPoint& point : points) point.expert_overlap = true;
  return points;
}

TEST(ParityExpertOverlap, EqualsThePlainModel) {
  ParityReport report;
  report.run(expert_overlap_points());
  fmt::print("{}", report.summary(lattice_points().size()));
}

// The arithmetic is the same, and so is its order: bit for bit.
TEST(ParityExpertOverlap, ChangesNoBit) {
  for (const ParityPoint& together : expert_overlap_points()) {
    const ParityModel model(together.family);
    ParityPoint apart = together;
    apart.expert_overlap = false;
    const ParityNumbers actual = model.run(together), expected = model.run(apart);
    EXPECT_EQ(actual.losses, expected.losses) << together.name();
    EXPECT_EQ(actual.grad_norms, expected.grad_norms) << together.name();
    for (const auto& [name, value] : expected.parameters)
      EXPECT_TRUE(actual.parameters.at(name).equal(value)) << together.name() << ": " << name;
  }
}

// The message of a failure.
TEST(ParityLattice, FailureNamesLayoutParameterAndLayer) {
  ParityNumbers right;
  right.losses = right.grad_norms = {1};
  right.gradients = {{"model.layers.2.mlp.up_proj.weight", at::ones({2})}, {"model.layers.5.x", at::ones({2})}};
  ParityNumbers wrong = right;
  wrong.gradients = {{"model.layers.2.mlp.up_proj.weight", at::zeros({2})}, {"model.layers.5.x", at::zeros({2})}};
  ParityPoint point{.family = "qwen3", .tp = 2};
  ::testing::TestPartResultArray failures;
  {
    ::testing::ScopedFakeTestPartResultReporter catcher(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    expect_parity(point, wrong, right);
  }
  ASSERT_EQ(failures.size(), 1);
  const std::string message = failures.GetTestPartResult(0).message();
  for (const char* part : {"qwen3: tp 2", "2 tensors differ", "layer 5", "model.layers.5.x"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
}

}  // namespace
}  // namespace megalith::testing
