// Distillation: five steps of TRL's loss, and the same numbers in every layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "megalith/model/families/family.h"
#include "megalith/train/distillation/teacher_model.h"
#include "megalith/train/settings/distillation_settings.h"
#include "megalith/train/step/frozen_model.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden_model.h"
#include "tests/train/distillation_case.h"

namespace megalith::testing {
namespace {

using nlohmann::json;

std::filesystem::path golden_hf(const json& member) { return golden_dir() / "hf" / member.get<std::string>(); }

// ---- Golden steps ----

std::vector<data::Sequence> golden_rows() {
  const GoldenModel golden = read_golden_model("llama");
  std::vector<data::Sequence> rows;
  for (int64_t row = 0; row < golden.input_ids.size(0); ++row) {
    data::Sequence sequence;
    for (int64_t i = 0; i < golden.input_ids.size(1); ++i) {
      sequence.ids.push_back(golden.input_ids[row][i].item<int32_t>());
      sequence.labels.push_back(golden.labels[row][i].item<int32_t>());
    }
    rows.push_back(std::move(sequence));
  }
  return rows;
}

TrainerCase golden_case(const json& expected, const std::string& name, int tp = 1, int pp = 1, int cp = 1, int dp = 1) {
  TrainerCase how{.name = name, .tp = tp, .pp = pp, .dp = dp, .cp = cp};
  const json& train = expected.at("train");
  how.args.distillation = golden_distillation(expected.at("options"));
  how.args.parallel.sequence_parallel = tp > 1;
  how.args.optimizer.use_distributed_optimizer = dp > 1;
  how.args.run.max_steps = train.at("steps");
  how.args.batch.micro_batch_size = 2 / dp;
  how.args.optimizer.learning_rate = train.at("lr");
  how.args.optimizer.weight_decay = train.at("weight_decay");
  how.args.optimizer.adam_beta1 = train.at("betas").at(0);
  how.args.optimizer.adam_beta2 = train.at("betas").at(1);
  how.args.optimizer.adam_epsilon = train.at("eps");
  how.args.optimizer.max_grad_norm = train.at("clip");
  return how;
}

// The first line has no history of steps in it; from then on Adam magnifies the rounding of small gradients.
void expect_golden_run(const RunLog& run, const json& expected) {
  const auto losses = run.numbers("loss"), norms = run.numbers("grad_norm");
  const json& train = expected.at("train");
  ASSERT_EQ(losses.size() + 1, train.at("losses").size());
  ASSERT_EQ(norms.size(), train.at("grad_norms").size());
  for (size_t i = 0; i < losses.size(); ++i) {
    expect_close(losses[i], train.at("losses")[i], fmt::format("loss {}", i), i == 0 ? kClose : 1e-4);
    expect_close(norms[i], train.at("grad_norms")[i], fmt::format("gradient norm {}", i), i == 0 ? 2 * kClose : 1e-4);
  }
  expect_close(*run.evaluation.find("eval_loss"), train.at("losses").back(), "loss of the evaluation", 1e-4);
  expect_close(run.numbers("kd_loss").at(0), expected.at("kd_loss"), "kd_loss");
  expect_close(run.numbers("lm_loss").at(0), expected.at("lm_loss"), "lm_loss");
  EXPECT_FALSE(run.evaluation.find("eval_perplexity"));
}

TEST(GoldenDistillation, StepsOfTrl) {
  const json golden = read_golden_distillation();
  const DistillationRun run{golden_hf(golden.at("student")), golden_hf(golden.at("teacher")), golden_rows()};
  for (const auto& [name, expected] : golden.at("cases").items()) {
    SCOPED_TRACE(name);
    expect_golden_run(run_distillation(golden_case(expected, name), run), expected);
  }
}

TEST(GoldenDistillation, StepsOfTrlInLayouts) {
  const json golden = read_golden_distillation();
  const DistillationRun run{golden_hf(golden.at("student")), golden_hf(golden.at("teacher")), golden_rows()};
  const json& expected = golden.at("cases").at("jsd_tilted");
  for (const auto& [tp, pp, cp, dp] :
       {std::array{2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}, {2, 2, 1, 2}}) {
    const TrainerCase how =
        golden_case(expected, fmt::format("tp {} pp {} cp {} dp {}", tp, pp, cp, dp), tp, pp, cp, dp);
    SCOPED_TRACE(how.name);
    expect_golden_run(run_distillation(how, run), expected);
  }
}

// ---- Layouts ----

const std::vector<std::string> kKeys{"loss", "kd_loss", "lm_loss"};

void expect_close_runs(const RunLog& run, const RunLog& expected, double tolerance) {
  ASSERT_EQ(run.lines.size(), expected.lines.size());
  for (const std::string& key : kKeys) {
    const auto actual = run.numbers(key), right = expected.numbers(key);
    ASSERT_FALSE(right.empty()) << key;
    ASSERT_EQ(actual.size(), right.size()) << key;
    for (size_t i = 0; i < right.size(); ++i)
      expect_close(actual[i], right[i], fmt::format("{} {}", key, i), tolerance);
    expect_close(*run.evaluation.find("eval_" + key), *expected.evaluation.find("eval_" + key), "eval_" + key,
                 tolerance);
  }
  const auto norms = run.numbers("grad_norm"), right = expected.numbers("grad_norm");
  ASSERT_EQ(norms.size(), right.size());
  for (size_t i = 0; i < right.size(); ++i) expect_close(norms[i], right[i], "gradient norm", 2 * tolerance);
}

// SGD: it does not magnify the rounding of small gradients.
TrainerCase distillation_case(const std::string& name, int microbatches,
                              const std::function<void(TrainerCase&)>& change = {}) {
  TrainerCase how{.name = name};
  how.args.run.max_steps = 3;
  how.args.optimizer.optimizer = config::OptimizerKind::kSgd;
  how.args.optimizer.optim = config::HfOptimizer::kSgd;
  how.args.optimizer.learning_rate = 0.01;
  how.args.distillation = {
      .teacher = "teacher", .loss = config::KdLoss::kJsd, .beta = 0.3, .temperature = 1.5, .ratio = 0.6};
  how.args.batch.gradient_accumulation_steps = microbatches;
  if (change) change(how);
  how.args.parallel.sequence_parallel = how.args.parallel.sequence_parallel || how.tp > 1;
  how.args.batch.micro_batch_size = 8 / how.dp / microbatches;
  return how;
}

// The teacher has another width, depth and number of heads than the student.
TEST(DistillationLayouts, GiveTheNumbersOfOneRank) {
  const DistillationRun run{golden_folder("qwen3"), other_teacher(), random_sequences(8, 256)};
  const RunLog alone = run_distillation(distillation_case("one rank", 4), run);
  const auto whole = [](TrainerCase& c) { c.args.recompute.granularity = config::RecomputeGranularity::kFull; };
  for (const TrainerCase& how :
       {distillation_case("tp 2", 4, [](TrainerCase& c) { c.tp = 2; }),
        distillation_case("tp 2 dp 2", 4, [](TrainerCase& c) { c.tp = c.dp = 2; }),
        distillation_case("zero bubble", 4,
                          [](TrainerCase& c) {
                            c.pp = 2;
                            c.args.pipeline.schedule = layout::ScheduleKind::kZeroBubble;
                          }),
        distillation_case("packed, cp 2", 4,
                          [](TrainerCase& c) { c.cp = 2, c.collator.padding = data::Padding::kNone; }),
        distillation_case("loss in chunks, cp 2 tp 2", 4,
                          [](TrainerCase& c) { c.cp = c.tp = 2, c.args.fusion.cross_entropy_loss = true; }),
        distillation_case("recompute, tp 2 pp 2", 4,
                          [&](TrainerCase& c) {
                            c.tp = c.pp = 2;
                            whole(c);
                          }),
        distillation_case("overlapped distributed optimizer", 2, [](TrainerCase& c) {
          c.dp = 2;
          c.args.optimizer.use_distributed_optimizer = true;
          c.args.ddp.overlap_grad_reduce = c.args.ddp.overlap_param_gather = true;
          c.args.ddp.bucket_size = 5000;
        })}) {
    SCOPED_TRACE(how.name);
    expect_close_runs(run_distillation(how, run), alone, 5e-5);
  }
}

// The loss of a micro-batch is a mean here, not of all tokens of a step.
TEST(DistillationLayouts, MeansOfMicrobatches) {
  const DistillationRun run{golden_folder("qwen3"), other_teacher(), random_sequences(8, 256)};
  const auto by_mean = [](TrainerCase& c) { c.args.ddp.calculate_per_token_loss = false; };
  const RunLog alone = run_distillation(distillation_case("one rank", 2, by_mean), run);
  const auto spread = distillation_case("cp 2 tp 2 pp 2", 2, [&](TrainerCase& c) {
    by_mean(c);
    c.cp = c.tp = c.pp = 2;
  });
  expect_close_runs(run_distillation(spread, run), alone, 5e-5);
}

TEST(DistillationLayouts, VirtualStages) {
  const DistillationRun run{golden_folder("llama"), golden_folder("preference/ref"), random_sequences(8, 512)};
  const RunLog alone = run_distillation(distillation_case("one rank", 4), run);
  const auto stages = distillation_case("pp 2 vpp 2", 4, [](TrainerCase& c) { c.pp = 2, c.vpp = 2; });
  expect_close_runs(run_distillation(stages, run), alone, 5e-5);
}

// Experts on either side; a dense teacher has none to distribute.
TEST(DistillationLayouts, ExpertsGiveTheNumbersOfOneRank) {
  for (const char* teacher : {"qwen3", "qwen2_moe"}) {
    SCOPED_TRACE(teacher);
    const DistillationRun run{golden_folder("qwen3_moe"), golden_folder(teacher), random_sequences(8, 256)};
    const auto layout = [](const std::string& name, int tp, int dp) {
      return distillation_case(name, 4 / dp, [&](TrainerCase& c) {
        c.tp = tp, c.dp = dp;
        c.args.parallel.ep = 2;
        c.args.parallel.etp = 1;
        c.args.moe.token_dispatcher = config::TokenDispatcher::kAllToAll;
      });
    };
    const RunLog alone = run_distillation(distillation_case("one rank", 4), run);
    for (const TrainerCase& how : {layout("ep 2 over dp", 1, 2), layout("ep 2 over tp", 2, 1)}) {
      SCOPED_TRACE(how.name);
      expect_close_runs(run_distillation(how, run), alone, 1e-4);
    }
  }
}

// Adapters on layers, and on the head, whose logits then exist as a whole.
TEST(DistillationLayouts, AdaptersGiveTheNumbersOfOneRank) {
  const DistillationRun run{golden_folder("qwen3"), other_teacher(), random_sequences(8, 256)};
  const model::ModelConfig config = model::read_model_config(run.student);
  for (const bool on_head : {false, true}) {
    if (on_head && config.tied_embeddings) continue;
    const auto adapted = [&](TrainerCase& c) {
      c.args.run.finetuning_type = config::FinetuningType::kLora;
      c.args.source.model_name_or_path = run.student.string();
      c.args.lora.rank = 4;
      if (on_head) c.args.lora.target = {"q_proj", "down_proj", "lm_head"};
    };
    const RunLog alone = run_distillation(distillation_case("one rank", 4, adapted), run);
    const auto losses = alone.numbers("loss");
    EXPECT_NE(losses.front(), losses.back());
    const auto spread = distillation_case("tp 2 pp 2", 4, [&](TrainerCase& c) {
      adapted(c);
      c.tp = c.pp = 2;
    });
    SCOPED_TRACE(on_head ? "with the head" : "layers");
    expect_close_runs(run_distillation(spread, run), alone, 5e-5);
  }
}

// More tokens than a slice, so that gradients of the head are sums of several.
TEST(DistillationLayouts, SeveralSlices) {
  const DistillationRun run{golden_folder("qwen3"), other_teacher(), random_sequences(80, 256)};
  const auto batch = [](int microbatches, int tp) {
    TrainerCase how = distillation_case(fmt::format("tp {}", tp), microbatches, [&](TrainerCase& c) { c.tp = tp; });
    how.args.run.max_steps = 1;
    how.args.batch.micro_batch_size = 80 / microbatches;
    how.args.batch.eval_micro_batch_size = 80 / microbatches;
    return how;
  };
  const RunLog small = run_distillation(batch(10, 1), run);
  expect_close_runs(run_distillation(batch(1, 1), run), small, 5e-5);
  expect_close_runs(run_distillation(batch(1, 2), run), small, 5e-5);
}

// Evaluation counts every sample once, whatever the groups are.
TEST(DistillationLayouts, EvaluationOfFiveSamples) {
  const DistillationRun run{golden_folder("llama"), golden_folder("preference/ref"), random_sequences(5, 512)};
  const auto evaluate = [&](const TrainerCase& how) {
    train::MetricList metrics;
    run_trainer_ranks(run.student, how, [&](const TrainerRank& r) {
      train::TrainerSetup setup = r.setup(dataset_of(run.samples), dataset_of(run.samples));
      setup.objective = std::make_unique<train::DistillationObjective>(
          train::DistillationSettings{.loss = config::KdLoss::kReverseKl, .ratio = 0.5}, teacher_on(r, run.teacher));
      const auto mine = train::Trainer(r.models, r.settings(), std::move(setup)).evaluate();
      if (r.rank.rank == 0) metrics = mine;
    });
    return metrics;
  };
  const train::MetricList alone = evaluate(distillation_case("one rank", 1));
  const train::MetricList others = evaluate(distillation_case("pp 2 dp 2 vpp 2", 2, [](TrainerCase& c) {
    c.pp = c.dp = 2, c.vpp = 2;
    c.args.batch.eval_micro_batch_size = 1;
  }));
  for (const std::string& key : kKeys) expect_close(*others.find("eval_" + key), *alone.find("eval_" + key), key, 5e-5);
}

// ---- The teacher alone ----

// It keeps what its head reads, so its logits are those of the model itself; and it changes nothing.
TEST(TeacherModel, GivesTheLogitsOfItsModel) {
  const GoldenModel golden = read_golden_model("llama");
  for (const int tp : {1, 2}) {
    const auto how = distillation_case("teacher", 1, [&](TrainerCase& c) { c.tp = tp; });
    run_trainer_ranks(golden.folder, how, [&](const TrainerRank& r) {
      const auto teacher = teacher_on(r, golden.folder);
      const std::vector<data::Sample> samples{data::Sample{golden_rows().front()}};
      const data::MicroBatch batch = r.collator.collate(samples);
      teacher->run({&batch, 1});
      const at::Tensor hidden = teacher->hidden(0);
      const ops::VocabRange range = teacher->vocab_range();
      // The last token has no target, so it is not in the batch.
      const int64_t columns = range.end - range.begin, tokens = golden.logits.size(0) - 1;
      expect_close(teacher->logits(hidden.narrow(0, 0, tokens)).narrow(1, 0, columns),
                   golden.logits.narrow(0, 0, tokens).narrow(1, range.begin, columns), "logits", 2e-5);
    });
  }
}

// ---- Bad input ----

TEST(DistillationObjective, RefusesAnotherVocabulary) {
  std::string message;
  run_trainer_ranks(golden_folder("llama"), distillation_case("one rank", 1), [&](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(8, 256)));
    setup.objective = std::make_unique<train::DistillationObjective>(train::DistillationSettings{},
                                                                     teacher_on(r, golden_folder("qwen3")));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    message = error_of<InternalError>([&] { trainer.train(); });
  });
  expect_contains(message, "of 256 on this rank, and the student 0 to 512 of 512");
}

}  // namespace
}  // namespace megalith::testing
