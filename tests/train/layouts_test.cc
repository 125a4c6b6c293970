// The same data gives the same training in every layout, and that of a plain model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/close.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_folder.h"
#include "tests/train/same_run.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

// All have 8 samples per step.
std::vector<TrainerCase> layouts() {
  std::vector<TrainerCase> all;
  const auto add = [&](std::string name, int tp, int pp, int dp, int accumulation,
                       const std::function<void(TrainerCase&)>& change = {}) {
    TrainerCase& c = all.emplace_back();
    c.name = std::move(name);
    c.tp = tp, c.pp = pp, c.dp = dp;
    c.args.batch.gradient_accumulation_steps = accumulation;
    c.args.batch.micro_batch_size = 8 / dp / accumulation;
    if (change) change(c);
  };
  const auto sequence_parallel = [](TrainerCase& c) { c.args.parallel.sequence_parallel = true; };
  const auto distributed = [](TrainerCase& c) { c.args.optimizer.use_distributed_optimizer = true; };
  const auto overlapped = [](TrainerCase& c) {
    c.args.optimizer.use_distributed_optimizer = true;
    c.args.ddp.overlap_grad_reduce = c.args.ddp.overlap_param_gather = true;
    c.args.ddp.bucket_size = 5000;
  };
  add("accumulation", 1, 1, 1, 4);
  add("tp", 2, 1, 1, 1);
  add("tp sp", 2, 1, 1, 2, sequence_parallel);
  add("dp", 1, 1, 4, 1);
  add("dp accumulation", 1, 1, 2, 2);
  add("dp distributed optimizer", 1, 1, 2, 1, distributed);
  add("dp distributed optimizer, overlapped", 1, 1, 2, 2, overlapped);
  add("packed", 1, 1, 1, 1, [](TrainerCase& c) { c.collator.padding = data::Padding::kNone; });
  add("packed tp sp dp", 2, 1, 2, 2, [&](TrainerCase& c) {
    c.collator.padding = data::Padding::kNone;
    sequence_parallel(c);
  });
  add("recompute", 1, 1, 2, 2, [&](TrainerCase& c) {
    c.args.recompute.granularity = config::RecomputeGranularity::kFull;
    overlapped(c);
  });
  add("loss with the projection inside", 2, 1, 1, 1, [](TrainerCase& c) { c.args.fusion.cross_entropy_loss = true; });
  add("tp sp dp distributed", 2, 1, 2, 2, [&](TrainerCase& c) {
    sequence_parallel(c);
    overlapped(c);
  });
  add("pp", 1, 2, 1, 4);
  add("pp packed, micro-batches of different lengths", 1, 2, 1, 2,
      [](TrainerCase& c) { c.collator.padding = data::Padding::kNone; });
  add("pp tp sp", 2, 2, 1, 2, sequence_parallel);
  add("pp dp overlapped", 1, 2, 2, 4, overlapped);
  add("pp recompute", 1, 4, 1, 8,
      [](TrainerCase& c) { c.args.recompute.granularity = config::RecomputeGranularity::kFull; });
  add("vpp", 1, 2, 1, 4, [](TrainerCase& c) { c.vpp = 2; });
  add("vpp tp dp overlapped", 2, 2, 2, 2, [&](TrainerCase& c) {
    c.vpp = 2;
    overlapped(c);
  });
  add("vpp dp, gathers during the update", 1, 2, 2, 4, [&](TrainerCase& c) {
    c.vpp = 2;
    overlapped(c);
    c.args.optimizer.overlap_param_gather_with_optimizer_step = true;
  });
  add("vpp dp, reduction as soon as it can be", 1, 2, 2, 4, [&](TrainerCase& c) {
    c.vpp = 2;
    overlapped(c);
    c.args.ddp.align_grad_reduce = false;
  });
  add("gloo", 1, 1, 2, 2, [&](TrainerCase& c) {
    overlapped(c);
    c.gloo = true;
  });
  return all;
}

class TrainerLayouts : public ::testing::TestWithParam<const char*> {};

TEST_P(TrainerLayouts, GiveTheSameRun) {
  const auto folder = golden_folder(GetParam());
  const int64_t vocab = model::read_model_config(folder).vocab_size;
  const auto train = random_sequences(20, vocab), eval = random_sequences(5, vocab, 3);
  const RunLog alone = run_training(folder, {}, train, eval);
  ASSERT_EQ(alone.numbers("loss").size(), 4);
  for (const TrainerCase& layout : layouts())
    expect_same_run(run_training(folder, layout, train, eval), alone, layout.name);
}

// Stages send the stream as it is: in fp32, although the model is in bf16.
TEST_P(TrainerLayouts, GiveTheSameRunWithAStreamInFp32) {
  const auto folder = golden_folder(GetParam());
  const int64_t vocab = model::read_model_config(folder).vocab_size;
  const auto train = random_sequences(20, vocab), eval = random_sequences(5, vocab, 3);
  TrainerCase alone;
  alone.args.precision.bf16 = alone.args.precision.fp32_residual_connection = true;
  alone.args.batch.gradient_accumulation_steps = 4;
  alone.args.batch.micro_batch_size = 2;
  TrainerCase stages = alone;
  stages.name = "pp", stages.pp = 2;
  const RunLog one = run_training(folder, alone, train, eval), two = run_training(folder, stages, train, eval);
  EXPECT_EQ(two.numbers("loss")[0], one.numbers("loss")[0]);
  expect_same_run(two, one, stages.name);
}

INSTANTIATE_TEST_SUITE_P(Models, TrainerLayouts, ::testing::Values("llama", "qwen2", "gpt2"),
                         [](const auto& test) { return std::string(test.param); });

// ---- Against a model in plain ATen ----

// The losses and gradient norms of some steps of SGD.
struct PlainRun {
  std::vector<double> losses, grad_norms;
};
PlainRun plain_sgd(const std::filesystem::path& folder, const std::vector<data::Sequence>& samples, int steps,
                   int accumulation, int micro_batch, double lr, bool per_token, double smoothing = 0) {
  const ReferenceModel model = ReferenceModel::from_folder(folder);
  PlainRun run;
  std::map<std::string, at::Tensor> momentum;
  size_t next = 0;
  for (int step = 0; step < steps; ++step) {
    model.zero_grad();
    double loss = 0;
    int64_t all_tokens = 0;
    for (int m = 0; m < accumulation; ++m) {
      at::Tensor sum = at::zeros({});
      int64_t tokens = 0;
      for (int i = 0; i < micro_batch; ++i, ++next) {
        if (next == samples.size() / (static_cast<size_t>(accumulation) * micro_batch) * accumulation * micro_batch)
          next = 0;
        const data::Sequence& s = samples[next];
        const at::Tensor ids = at::tensor(std::vector<int64_t>(s.ids.begin(), s.ids.end())).unsqueeze(0);
        const at::Tensor labels = at::tensor(std::vector<int64_t>(s.labels.begin(), s.labels.end())).unsqueeze(0);
        sum = sum + reference_token_losses(model.forward(ids).logits, labels, {}, smoothing).sum();
        tokens += reference_label_count(labels);
      }
      const at::Tensor mean = sum / (per_token ? 1 : tokens * accumulation);
      mean.backward();
      loss += mean.item<double>();
      all_tokens += tokens;
    }
    const double divisor = per_token ? static_cast<double>(all_tokens) : 1;
    run.losses.push_back(loss / divisor);
    run.grad_norms.push_back(model.grad_norm() / divisor);
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : model.parameters()) {
      at::Tensor& v = momentum[name];
      v = v.defined() ? v * 0.9 + model.grad(name) / divisor : model.grad(name) / divisor;
      at::Tensor(parameter).sub_(v, lr);
    }
  }
  return run;
}

TEST(TrainerAgainstPlainModel, StepsOfSgdAreTheSame) {
  for (const char* name : {"llama", "gpt2"})
    for (const auto& [per_token, smoothing] : {std::pair{true, 0.0}, {false, 0.0}, {true, 0.1}}) {
      SCOPED_TRACE(fmt::format("{} per token {}, label smoothing {}", name, per_token, smoothing));
      const auto folder = golden_folder(name);
      const auto samples = random_sequences(13, model::read_model_config(folder).vocab_size);
      TrainerCase how;
      how.args.batch.micro_batch_size = 2;
      how.args.batch.gradient_accumulation_steps = 2;
      how.args.optimizer.optimizer = config::OptimizerKind::kSgd;
      how.args.optimizer.optim = config::HfOptimizer::kSgd;
      how.args.optimizer.learning_rate = 0.05;
      how.args.optimizer.weight_decay = 0;
      how.args.optimizer.max_grad_norm = 0;
      how.args.ddp.calculate_per_token_loss = per_token;
      how.args.optimizer.label_smoothing_factor = smoothing;
      const PlainRun expected = plain_sgd(folder, samples, 4, 2, 2, 0.05, per_token, smoothing);
      const RunLog actual = run_training(folder, how, samples, samples);
      const auto losses = actual.numbers("loss"), norms = actual.numbers("grad_norm");
      ASSERT_EQ(losses.size(), 4);
      for (size_t i = 0; i < 4; ++i) {
        expect_close(losses[i], expected.losses[i], fmt::format("loss {}", i));
        expect_close(norms[i], expected.grad_norms[i], fmt::format("norm {}", i), 5e-5);
      }
    }
}

// The smoothed part of the loss covers the whole vocabulary, wherever its columns are. What evaluation reports is
// smoothed as well, as in Hugging Face's trainer, and has no perplexity.
TEST(TrainerLabelSmoothing, IsTheSameInEveryLayout) {
  const auto folder = golden_folder("llama");
  const auto samples = random_sequences(20, 512);
  const auto smoothed = [&](TrainerCase how) {
    how.args.optimizer.label_smoothing_factor = 0.2;
    return run_training(folder, how, samples, samples);
  };
  const RunLog alone = smoothed({});
  EXPECT_FALSE(alone.evaluation.find("eval_perplexity"));
  EXPECT_GT(*alone.evaluation.find("eval_loss"),
            *run_training(folder, {}, samples, samples).evaluation.find("eval_loss"));
  for (const TrainerCase& layout : layouts()) {
    if (layout.tp == 1 && layout.pp == 1) continue;
    expect_same_run(smoothed(layout), alone, layout.name);
  }
}

// NEFTune: noise in training only, the same for a seed, also on ranks that share the tokens.
TEST(TrainerNoise, DisturbsTrainingAndNotEvaluation) {
  const auto folder = golden_folder("llama");
  const auto samples = random_sequences(20, 512);
  const auto run = [&](double alpha, int tp) {
    TrainerCase how{.tp = tp};
    how.args.optimizer.neftune_noise_alpha = alpha;
    how.args.optimizer.learning_rate = 0;  // the model stays as it is
    return run_training(folder, how, samples, samples);
  };
  const RunLog quiet = run(0, 1), noisy = run(5, 1);
  EXPECT_NE(noisy.numbers("loss"), quiet.numbers("loss"));
  EXPECT_NEAR(noisy.numbers("loss")[0], quiet.numbers("loss")[0], 0.5);  // √(L · h) keeps it small
  expect_same_run(run(5, 2), noisy, "tp 2");                             // rows are padded to other lengths there
  EXPECT_EQ(*noisy.evaluation.find("eval_loss"), *quiet.evaluation.find("eval_loss"));
}

// Learned positions may be fewer than the padded length, and dynamic rotary frequencies follow the longest sequence.
TEST(TrainerPadding, ChangesNoLoss) {
  const TempFolder dynamic;
  std::filesystem::copy(golden_folder("llama"), dynamic.path(), std::filesystem::copy_options::recursive);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(dynamic / "config.json"));
  config["rope_parameters"] = {{"rope_type", "dynamic"}, {"rope_theta", 10000.0}, {"factor", 2.0}};
  config["max_position_embeddings"] = 4;
  std::ofstream(dynamic / "config.json") << config.dump();
  for (const auto& folder : {golden_folder("gpt2"), dynamic.path()}) {
    const auto samples = random_sequences(20, model::read_model_config(folder).vocab_size);
    const RunLog expected = run_training(folder, {}, samples, samples);
    for (const auto& [tp, cp] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
      TrainerCase padded{.tp = tp, .cp = cp};
      padded.collator.length_multiple = 1000;
      padded.args.parallel.sequence_parallel = tp > 1;
      expect_same_run(run_training(folder, padded, samples, samples), expected, fmt::format("tp {} cp {}", tp, cp));
    }
  }
}

// Each rank's micro-batches have means of their own: two ranks of two are one rank of four.
TEST(TrainerPerMicrobatchLoss, IsTheMeanOfAllMicrobatches) {
  const auto folder = golden_folder("llama");
  const auto samples = random_sequences(20, 512);
  TrainerCase alone;
  alone.args.ddp.calculate_per_token_loss = false;
  alone.args.batch.micro_batch_size = 2;
  alone.args.batch.gradient_accumulation_steps = 4;
  TrainerCase spread = alone;
  spread.dp = 2;
  spread.args.batch.gradient_accumulation_steps = 2;
  expect_same_run(run_training(folder, spread, samples, samples), run_training(folder, alone, samples, samples), "dp");
}

TEST(TrainerPrecision, Bf16AndFp16ComeCloseToFp32) {
  const auto folder = golden_folder("llama");
  const auto samples = random_sequences(20, 512);
  TrainerCase fp32;
  const auto expected = run_training(folder, fp32, samples, samples).numbers("loss");
  for (const bool fp16 : {false, true}) {
    TrainerCase half;
    half.dp = 2;
    half.args.batch.micro_batch_size = 4;
    half.args.optimizer.use_distributed_optimizer = true;
    (fp16 ? half.args.precision.fp16 : half.args.precision.bf16) = true;
    half.args.precision.initial_loss_scale = 1024;
    const auto actual = run_training(folder, half, samples, samples).numbers("loss");
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) expect_close(actual[i], expected[i], fmt::format("loss {}", i), 1e-2);
  }
}

// fp16 gradients times 2^32 overflow: steps are skipped, without an update, until the scale fits.
TEST(TrainerPrecision, OverflowsOfFp16AreSkipped) {
  const auto folder = golden_folder("llama");
  const auto samples = random_sequences(8, 512);
  TrainerCase how;
  how.args.precision.fp16 = true;
  how.args.precision.hysteresis = 1;
  how.args.schedule.lr_scheduler_type = config::HfScheduler::kLinear;
  how.args.run.max_steps = 3;
  const RunLog run = run_training(folder, how, samples, samples);
  EXPECT_EQ(run.numbers("skipped_iter"), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(run.numbers("loss_scale"), (std::vector<double>{0x1p32, 0x1p31, 0x1p30}));
  EXPECT_TRUE(run.numbers("grad_norm").empty());
  const auto losses = run.numbers("loss"), rates = run.numbers("learning_rate");
  EXPECT_EQ(losses, (std::vector<double>(3, losses[0])));
  EXPECT_EQ(rates, (std::vector<double>(3, 1e-3)));
}

}  // namespace
}  // namespace megalith::testing
