// Published formulas, cluster files, group speeds, goodput: what needs no run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/plan/activation_formulas.h"
#include "megalith/plan/cluster.h"
#include "megalith/plan/goodput.h"
#include "megalith/plan/step_time.h"
#include "tests/support/expect.h"

namespace megalith::plan {
namespace {

using LayerRecompute = MegatronLayer::Recompute;

// arXiv:2205.05198, table 2.
TEST(MegatronActivations, AreThePublishedFormulas) {
  for (const double s : {1024.0, 2048.0, 8192.0})
    for (const double h : {1024.0, 12288.0})
      for (const double a : {16.0, 96.0})
        for (const double t : {1.0, 2.0, 8.0}) {
          const double b = 2, sbh = s * b * h, scores = 5 * a * s / h;
          MegatronLayer layer{.sequence = s, .batch = b, .hidden = h, .heads = a, .tp = t};
          EXPECT_DOUBLE_EQ(megatron_activation_bytes(layer), sbh * (10 + 24 / t + scores / t));
          if (t == 1) {
            EXPECT_DOUBLE_EQ(megatron_activation_bytes(layer), sbh * (34 + scores));
          }
          layer.recompute = LayerRecompute::kSelective;
          EXPECT_DOUBLE_EQ(megatron_activation_bytes(layer), sbh * (10 + 24 / t));
          layer.sequence_parallel = true;
          EXPECT_DOUBLE_EQ(megatron_activation_bytes(layer), sbh * 34 / t);
          layer.recompute = LayerRecompute::kNone;
          EXPECT_DOUBLE_EQ(megatron_activation_bytes(layer), sbh / t * (34 + scores));
          layer.recompute = LayerRecompute::kFull;
          EXPECT_DOUBLE_EQ(megatron_activation_bytes(layer), 2 * sbh);
        }
  // The paper's figure 1: 22B, 175B, 530B and 1T models keep 80 GB and more without recomputation.
  const double gpt3 =
      96 * megatron_activation_bytes({.sequence = 2048, .batch = 1, .hidden = 12288, .heads = 96, .tp = 8});
  EXPECT_GT(gpt3 / 8, 6e9);
}

TEST(ClusterFile, IsReadAsItWasWritten) {
  for (const std::string& name : cluster_presets()) {
    const Cluster preset = find_cluster(name);
    const Cluster again = parse_cluster(to_yaml(preset), name);
    EXPECT_EQ(again.gpu, preset.gpu);
    EXPECT_EQ(again.cuda, preset.cuda);
    ASSERT_EQ(again.gemm.size(), preset.gemm.size());
    for (size_t i = 0; i < again.gemm.size(); ++i)
      EXPECT_NEAR(again.gemm[i].flops_per_second / preset.gemm[i].flops_per_second, 1, 1e-9);
    EXPECT_NEAR(again.memory_bytes / preset.memory_bytes, 1, 1e-9);
    EXPECT_NEAR(again.inter.latency_s / preset.inter.latency_s, 1, 1e-9);
  }
}

TEST(ClusterFile, MayChangeAPreset) {
  const Cluster cluster = parse_cluster("gpu: h200\nnodes: 4\nintra_gb_per_s: 100\n", "mine.yaml");
  EXPECT_EQ(cluster.nodes, 4);
  EXPECT_DOUBLE_EQ(cluster.intra.bytes_per_second, 100e9);
  EXPECT_DOUBLE_EQ(cluster.peak_flops, find_cluster("h200").peak_flops);
}

TEST(ClusterFile, IsRefusedWhereItIsWrong) {
  const auto refuse = [](const char* yaml, std::vector<std::string> named) {
    testing::expect_error<ConfigError>([&] { parse_cluster(yaml, "c.yaml"); }, named);
  };
  refuse("- a\n- b\n", {"c.yaml", "map"});
  refuse("gpu: h200\nnods: 4\n", {"c.yaml:2", "nods", "did you mean nodes"});
  refuse("gpu: h200\nnodes: 0\n", {"c.yaml:2", "nodes is 0", "whole number"});
  refuse("gpu: h200\nmemory_gib: lots\n", {"memory_gib is lots", "positive"});
  refuse("gpu: mine\nmemory_gib: 10\n", {"\"mine\" is not a preset", "peak_tflops", "gemm_tflops"});
  refuse("gpu: h200\nreserved_gib: 500\n", {"reserved_gib 500.0", "memory_gib"});
  refuse("gpu: h200\ngemm_tflops: 5\n", {"gemm_tflops", "map"});
  refuse("gpu: [\n", {"c.yaml:"});
  testing::expect_error<ConfigError>([] { find_cluster("h10"); }, {"\"h10\"", "h200", "doctor --measure"});
  testing::expect_error<DataError>([] { find_cluster("/no/such.yaml"); }, {"/no/such.yaml"});
}

TEST(ClusterSpeed, GrowsWithTheProduct) {
  const Cluster h200 = find_cluster("h200");
  double before = 0;
  for (const double edge : {64.0, 256.0, 1000.0, 3000.0, 20000.0}) {
    const double speed = 2 * edge * edge * edge / h200.gemm_seconds(edge, edge, edge, false);
    EXPECT_GE(speed, before);
    before = speed;
  }
  EXPECT_NEAR(before, 650e12, 1e9);
  EXPECT_GT(h200.gemm_seconds(4096, 4096, 4096, true), h200.gemm_seconds(4096, 4096, 4096, false));
}

TEST(GroupSpeed, KnowsNodes) {
  Cluster cluster = find_cluster("h100-80g");
  const GroupSpeed inside(cluster, 8, 1), across(cluster, 8, 8), whole(cluster, 16, 1);
  EXPECT_DOUBLE_EQ(inside.bytes_per_second, cluster.intra.bytes_per_second);
  EXPECT_DOUBLE_EQ(across.bytes_per_second, cluster.inter.bytes_per_second);
  // Two full nodes use the links of all eight members.
  EXPECT_DOUBLE_EQ(whole.bytes_per_second,
                   std::min(cluster.intra.bytes_per_second, 8 * cluster.inter.bytes_per_second));
  EXPECT_DOUBLE_EQ(GroupSpeed(cluster, 1, 1).all_reduce(1e9), 0);
  EXPECT_NEAR(inside.all_reduce(8e9), 2 * 7e9 / cluster.intra.bytes_per_second, 1e-3);
  EXPECT_GT(across.all_to_all(1e9), inside.all_to_all(1e9));
}

SimulatedRun some_run() {
  SimulatedRun run{.gpus = 16384, .step_s = 5};
  run.checkpoint = {.stall_s = 20, .write_s = 20, .load_s = 60};
  return run;
}

TEST(Goodput, PartsAreTheWhole) {
  SimulatedRun run = some_run();
  for (const double interval : {5.0, 300.0, 3000.0, 30000.0}) {
    run.interval_s = interval;
    const Goodput g = simulate(run, 3);
    EXPECT_NEAR(g.useful + g.saving + g.lost + g.restarts, 1, 1e-9) << interval;
    EXPECT_GT(g.failures, 0);
  }
}

TEST(Goodput, IsAllWithoutFailuresAndSaves) {
  SimulatedRun run = some_run();
  run.faults.gpu_mtbf_hours = 1e15;
  run.checkpoint = {};
  const Goodput g = simulate(run, 1);
  EXPECT_NEAR(g.useful, 1, 1e-9);
  EXPECT_EQ(g.failures, 0);
}

TEST(Goodput, CountsFailuresAsTheRateSays) {
  SimulatedRun run = some_run();
  run.days = 300;
  run.interval_s = 600;
  const double expected = run.days * 86400 / run_mtbf_s(run);
  EXPECT_NEAR(simulate(run, 5, 10).failures / expected, 1, 0.1);
}

// The best interval of the simulation is flat around what Young and Daly derived.
TEST(Goodput, AgreesWithYoungAndDaly) {
  for (const int gpus : {1024, 16384, 98304}) {
    SimulatedRun run = some_run();
    run.gpus = gpus;
    run.step_s = 2;
    run.days = 60;
    const double best = best_interval_s(run, 11, 20);
    EXPECT_NEAR(std::log2(best / daly_interval_s(run)), 0, 0.7) << gpus;
    run.interval_s = best;
    const double most = simulate(run, 77, 40).useful;
    run.interval_s = daly_interval_s(run);
    EXPECT_NEAR(simulate(run, 77, 40).useful, most, 0.01) << gpus;
    // First-order theory: C/t + t/2M + restarts.
    run.interval_s = young_interval_s(run);
    const double m = run_mtbf_s(run), t = run.interval_s;
    const double lost = run.checkpoint.stall_s / t + t / (2 * m) + (run.faults.restart_s + run.checkpoint.load_s) / m;
    EXPECT_NEAR(simulate(run, 77, 40).useful, 1 - lost, 0.05) << gpus;
  }
}

TEST(Goodput, RefusesTimesThatCannotBe) {
  SimulatedRun run = some_run();
  run.faults.gpu_mtbf_hours = 0;
  testing::expect_error<ConfigError>([&] { simulate(run, 1); }, {"mtbf_hours is 0", "positive"});
  run = some_run();
  run.checkpoint.stall_s = -1;
  testing::expect_error<ConfigError>([&] { simulate(run, 1); }, {"negative"});
}

}  // namespace
}  // namespace megalith::plan
