// pretrain() on rank threads: made-up data, small models.
#include "megalith/run/pretrain.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "megalith/base/error.h"
#include "megalith/checkpoint/manifest.h"
#include "megalith/run/pretrain_data.h"
#include "megalith/run/resolve/resolve.h"
#include "megalith/run/run.h"
#include "megalith/train/objectives/forward_step.h"
#include "tests/optim/lion.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using Words = std::vector<std::string>;
using run::PretrainEnd;
using run::PretrainFunctions;
using run::RunContext;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kLlama{"--num-layers=4",
                   "--hidden-size=32",
                   "--num-attention-heads=4",
                   "--seq-length=16",
                   "--max-position-embeddings=16",
                   "--position-embedding-type=rope",
                   "--normalization=RMSNorm",
                   "--swiglu",
                   "--disable-bias-linear",
                   "--hidden-dropout=0",
                   "--attention-dropout=0",
                   "--vocab-size=63",
                   "--tokenizer-type=NullTokenizer",
                   "--mock-data",
                   "--micro-batch-size=1",
                   "--global-batch-size=4",
                   "--train-iters=3",
                   "--lr=0.01",
                   "--lr-decay-style=constant",
                   "--log-interval=1",
                   "--eval-iters=1",
                   "--use-cpu",
                   "--calculate-per-token-loss"};

struct Outcome {
  run::PretrainOutput output;  // from rank 0
  Recorder::Heard heard;       // by rank 0
  std::vector<double> numbers(const std::string& name) const {
    std::vector<double> found;
    for (const train::MetricList& line : heard.lines)
      if (const auto value = line.find(name)) found.push_back(*value);
    return found;
  }
};

// `functions` gives a rank's own.
Outcome run(const Words& words, int ranks, const std::function<PretrainFunctions(const Rank&)>& functions = {},
            const std::function<void(const Rank&, run::InitializeOptions&)>& change = {}) {
  Outcome outcome;
  run_ranks(ranks, [&](const Rank& r) {
    run::InitializeOptions options{.world = &r.world};
    if (change) change(r, options);
    const auto context = run::initialize_megatron(words, std::move(options));
    Recorder::Heard heard;
    PretrainFunctions mine = functions ? functions(r) : PretrainFunctions{};
    mine.callbacks = [&](RunContext&, model::VirtualModels&) {
      std::vector<std::unique_ptr<train::TrainerCallback>> callbacks;
      callbacks.push_back(std::make_unique<Recorder>(heard));
      return callbacks;
    };
    const run::PretrainOutput output = run::pretrain(*context, std::move(mine));
    if (r.rank == 0) outcome = {output, heard};
  });
  return outcome;
}

void expect_close_lists(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance * std::abs(b[i])) << i;
}

TEST(Pretrain, EveryLayoutGivesTheSameLosses) {
  const Outcome one = run(kLlama, 1);
  ASSERT_EQ(one.numbers("loss").size(), 3U);
  EXPECT_LT(one.numbers("loss").back(), one.numbers("loss").front());
  EXPECT_EQ(one.output.end, PretrainEnd::kFinished);
  const std::vector<std::pair<int, Words>> layouts{
      {2, {"--tensor-model-parallel-size=2", "--sequence-parallel"}},
      {2, {"--pipeline-model-parallel-size=2"}},
      {2, {"--pipeline-model-parallel-size=2", "--num-virtual-stages-per-pipeline-rank=2"}},
      {2, {"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"}},
      {4, {"--tensor-model-parallel-size=2", "--pipeline-model-parallel-size=2"}}};
  for (const auto& [ranks, words] : layouts) {
    SCOPED_TRACE(words.front());
    const Outcome many = run(kLlama + words, ranks);
    expect_close_lists(many.numbers("loss"), one.numbers("loss"), 1e-4);
    EXPECT_NEAR(*many.output.validation.find("eval_loss"), *one.output.validation.find("eval_loss"), 1e-3);
    EXPECT_NEAR(*many.output.test.find("test_loss"), *one.output.test.find("test_loss"), 1e-3);
  }
}

TEST(Pretrain, GptModelsWithDropoutTrain) {
  const Outcome outcome = run({"--num-layers=2", "--hidden-size=32", "--num-attention-heads=4", "--seq-length=16",
                               "--max-position-embeddings=16", "--vocab-size=63", "--mock-data", "--micro-batch-size=2",
                               "--train-iters=6", "--lr=0.01", "--log-interval=1", "--eval-iters=0", "--use-cpu"},
                              1);
  EXPECT_EQ(outcome.heard.lines.size(), 7U);  // and the totals
  EXPECT_LT(outcome.numbers("loss").back(), outcome.numbers("loss").front());
  EXPECT_TRUE(outcome.output.validation.empty());
}

// A mean in place of a sum with its number of tokens, and a number of its own in the line.
TEST(Pretrain, ACustomForwardStepIsCalled) {
  Words words = kLlama;
  std::erase(words, "--calculate-per-token-loss");
  const Outcome usual = run(words, 1);
  const auto own = [](const Rank&) {
    PretrainFunctions functions;
    functions.report_keys = {"largest loss"};
    functions.forward_step = [](const train::ForwardStepInput& step) -> train::ForwardStepResult {
      return {step.chunk.forward(step.input), [&batch = step.batch](const at::Tensor& losses) -> train::LossResult {
                return {.loss = losses.sum() / static_cast<double>(batch.loss_tokens),
                        .report = {{"largest loss", losses.detach().max(), 1}}};
              }};
    };
    return functions;
  };
  for (const auto& [ranks, more] : {std::pair(1, Words{}), std::pair(2, Words{"--pipeline-model-parallel-size=2"})}) {
    const Outcome outcome = run(words + more, ranks, own);
    expect_close_lists(outcome.numbers("loss"), usual.numbers("loss"), 1e-5);
    const auto largest = outcome.numbers("largest loss");
    ASSERT_EQ(largest.size(), 3U);
    EXPECT_GT(largest[0], outcome.numbers("loss")[0]);
  }
}

// Lion at a rate that falls with the samples; 4 of them are a step.
TEST(Pretrain, ACustomOptimizerAndScheduleAreUsed) {
  const auto own = [](const Rank&) {
    PretrainFunctions functions;
    functions.update_rule = lion();
    functions.rates.lr = [](int64_t samples) { return 1e-3 / static_cast<double>(4 + samples); };
    return functions;
  };
  const Outcome one = run(kLlama, 1, own);
  EXPECT_EQ(one.numbers("learning_rate"), (std::vector<double>{1e-3 / 4, 1e-3 / 8, 1e-3 / 12}));
  EXPECT_LT(one.numbers("loss").back(), one.numbers("loss").front());
  const Outcome two = run(kLlama + Words{"--use-distributed-optimizer"}, 2, own);
  EXPECT_EQ(two.numbers("learning_rate"), one.numbers("learning_rate"));
  expect_close_lists(two.numbers("loss"), one.numbers("loss"), 1e-4);
}

// A weight of 2 for every label, in the data of training, validation and test.
TEST(Pretrain, ACustomCollatorMakesTheBatches) {
  const Outcome usual = run(kLlama, 1);
  const auto own = [](const Rank&) {
    PretrainFunctions functions;
    functions.collate = [](std::span<const data::Sample> samples, const data::Collator& built_in) {
      data::MicroBatch batch = built_in.collate(samples);
      batch.extras["weight"] = {at::full({batch.tokens()}, 2.0)};
      return batch;
    };
    functions.extra_keys = {"weight"};
    functions.forward_step = [](const train::ForwardStepInput& step) -> train::ForwardStepResult {
      return {step.chunk.forward(step.input), [&batch = step.batch](const at::Tensor& losses) -> train::LossResult {
                const at::Tensor weights = batch.extra("weight", losses.device());
                return {.loss = (weights * losses).sum() / 2, .num_tokens = batch.loss_tokens};
              }};
    };
    return functions;
  };
  const Words layout{"--pipeline-model-parallel-size=2", "--context-parallel-size=2"};
  for (const auto& [ranks, more] : {std::pair(1, Words{}), std::pair(4, layout)}) {
    const Outcome outcome = run(kLlama + more, ranks, own);
    expect_close_lists(outcome.numbers("loss"), usual.numbers("loss"), 1e-4);
    EXPECT_NEAR(*outcome.output.test.find("test_loss"), *usual.output.test.find("test_loss"), 1e-3);
  }
}

TEST(Pretrain, AModelProviderIsAskedOncePerChunk) {
  std::mutex mutex;
  std::vector<std::string> asked;
  run(kLlama + Words{"--pipeline-model-parallel-size=2", "--num-virtual-stages-per-pipeline-rank=2"}, 2,
      [&](const Rank& r) {
        PretrainFunctions functions;
        functions.model = [&, rank = r.rank](RunContext& context, const run::ChunkRequest& request) {
          const std::lock_guard lock(mutex);
          asked.push_back(fmt::format("{}: {} {} {} from {}", rank, request.pre_process, request.post_process,
                                      request.vp_stage.value_or(-1), request.place.first_layer));
          return run::gpt_model_provider(context)(context, request);
        };
        return functions;
      });
  std::ranges::sort(asked);
  EXPECT_EQ(asked, (Words{"0: false false 1 from 2", "0: true false 0 from 0", "1: false false 0 from 1",
                          "1: false true 1 from 3"}));
}

TEST(Pretrain, CustomDatasetsGetTheNumberOfSamples) {
  data::PerSplit<int64_t> asked{};
  run(kLlama + Words{"--eval-interval=2", "--eval-iters=3"}, 1, [&](const Rank&) {
    PretrainFunctions functions;
    functions.datasets = [&](RunContext& context, const data::PerSplit<int64_t>& samples) {
      asked = samples;
      run::ProvidedDatasets datasets = run::gpt_datasets(context, samples);
      datasets.valid = datasets.test = nullptr;
      return datasets;
    };
    return functions;
  });
  EXPECT_EQ(asked, (data::PerSplit<int64_t>{3 * 4, (3 / 2 + 1) * 3 * 4, 3 * 4}));
}

TEST(Pretrain, EvaluatesDuringTheRunAndContinuesInTheData) {
  const Outcome outcome = run(kLlama + Words{"--eval-interval=1"}, 2);
  EXPECT_EQ(outcome.numbers("eval_loss").size(), 4U);  // after each of 3 steps, and at the end
  EXPECT_EQ(std::ranges::count(outcome.heard.events, "predict"), 1);
  EXPECT_NE(outcome.numbers("eval_loss")[2], outcome.numbers("eval_loss")[3]);  // same weights, other samples
}

TEST(Pretrain, EndsAtAMultipleOfTheExitInterval) {
  const Outcome outcome = run(kLlama + Words{"--exit-interval=2"}, 1);
  EXPECT_EQ(outcome.output.end, PretrainEnd::kExitInterval);
  EXPECT_EQ(outcome.output.training.global_step, 2);
  EXPECT_TRUE(outcome.output.validation.empty());
}

TEST(Pretrain, EndsAfterItsTime) {
  const Outcome outcome = run(kLlama + Words{"--exit-duration-in-mins=0"}, 2);
  EXPECT_EQ(outcome.output.end, PretrainEnd::kStopped);
  EXPECT_EQ(outcome.output.training.global_step, 1);
}

TEST(Pretrain, TheStopRequestOfOneRankEndsAll) {
  train::StopFlag stop;
  stop.request();
  const Outcome outcome = run(kLlama + Words{"--pipeline-model-parallel-size=2"}, 2, {},
                              [&](const Rank& r, run::InitializeOptions& options) {
                                if (r.rank == 1) options.stop = &stop;
                              });
  EXPECT_EQ(outcome.output.end, PretrainEnd::kStopped);
  EXPECT_EQ(outcome.output.training.global_step, 1);
}

TEST(Pretrain, AutoresumeEndsTheRunAndStartsItAgain) {
  std::atomic<int> begun = 0, resumed = 0;
  const Outcome outcome = run(kLlama, 2, {}, [&](const Rank& r, run::InitializeOptions& options) {
    options.autoresume = {.init = [&] { ++begun; },
                          .termination_requested = [rank = r.rank] { return rank == 0; },
                          .request_resume = [&] { ++resumed; },
                          .interval = 2};
  });
  EXPECT_EQ(outcome.output.training.global_step, 2);
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(resumed, 1);
}

TEST(Pretrain, SkippedIterationsUseUpTheirData) {
  const Outcome outcome = run(kLlama + Words{"--iterations-to-skip", "2"}, 1);
  EXPECT_EQ(outcome.numbers("loss").size(), 2U);
  EXPECT_EQ(outcome.numbers("consumed_samples").back(), 12);
  EXPECT_EQ(outcome.numbers("skipped_samples").back(), 4);
}

TEST(Pretrain, TheBatchGrows) {
  const Outcome outcome = run(kLlama + Words{"--rampup-batch-size", "2", "2", "4", "--train-iters=4"}, 2);
  EXPECT_EQ(outcome.numbers("global_batch_size"), (std::vector<double>{2, 2, 4, 4}));
  const Outcome samples = run(
      [] {
        Words words = kLlama;
        std::erase(words, "--train-iters=3");
        return words + Words{"--train-samples=9"};
      }(),
      1);
  EXPECT_EQ(samples.output.training.global_step, 2);
}

TEST(Pretrain, SkipTrainEvaluatesOnly) {
  const Outcome outcome = run(kLlama + Words{"--skip-train"}, 1);
  EXPECT_EQ(outcome.output.end, PretrainEnd::kSkipped);
  EXPECT_TRUE(outcome.output.validation.find("eval_loss"));
  EXPECT_TRUE(outcome.output.test.find("test_loss"));
  EXPECT_TRUE(outcome.numbers("loss").empty());
}

TEST(Pretrain, NonLossDataReachTheLastRank) {
  for (const bool by_model : {false, true}) {
    std::mutex mutex;
    std::vector<std::string> seen;
    run(kLlama + Words{"--pipeline-model-parallel-size=2"}, 2, [&](const Rank& r) {
      PretrainFunctions functions;
      functions.forward_step = [](const train::ForwardStepInput& step) {
        train::ForwardStepResult result = train::gpt_forward_step(step);
        result.non_loss_data = [](const at::Tensor& losses) { return losses.max(); };
        return result;
      };
      if (by_model)
        functions.non_loss_data = [](model::VirtualModels&) { return std::vector<at::Tensor>{at::zeros({1})}; };
      functions.process_non_loss_data = [&, rank = r.rank](std::span<const at::Tensor> data, int64_t iteration,
                                                           const run::ScalarWriter&) {
        const std::lock_guard lock(mutex);
        seen.push_back(fmt::format("rank {} iteration {}: {}", rank, iteration, data.size()));
      };
      return functions;
    });
    EXPECT_EQ(seen, Words{fmt::format("rank 1 iteration 3: {}", by_model ? 1 : 4)});
  }
}

TEST(Pretrain, SavesAModelFolder) {
  const TempFolder folder;
  run(kLlama + Words{"--save=" + (folder.path() / "out").string(), "--save-interval=2"}, 2);
  EXPECT_EQ(model::read_model_config(folder.path() / "out").family, "llama");
  EXPECT_EQ(model::read_model_config(folder.path() / "out" / "checkpoint-2").vocab_size, 64);
  EXPECT_EQ(model::read_model_config(folder.path() / "out" / "checkpoint-3").num_layers, 4);
}

std::string pretrain_refusal(const Words& words, const PretrainFunctions& functions = {}) {
  std::string message;
  run_ranks(1, [&](const Rank& r) {
    try {
      const auto context = run::initialize_megatron(words, {.world = &r.world});
      run::pretrain(*context, functions);
    } catch (const Error& error) {
      message = error.what();
    }
  });
  return message;
}

TEST(Pretrain, ContinuesARun) {
  const TempFolder folder;
  const Words saving{"--save=" + folder.path().string(),
                     "--save-interval=2",
                     "--train-iters=6",
                     "--hidden-dropout=0.1",
                     "--eval-interval=1",
                     "--async-save",
                     "--use-persistent-ckpt-worker",
                     "--save-retain-interval=2"};
  const Outcome whole = run(kLlama + saving, 2);
  const auto at_end = checkpoint::read_manifest(folder / "checkpoint-6").files;
  const Outcome rest = run(kLlama + saving + Words{"--load=" + folder.path().string(), "--ckpt-step=2"}, 2);
  EXPECT_EQ(rest.output.state.global_step, 6);
  for (const checkpoint::FileRecord& file : checkpoint::read_manifest(folder / "checkpoint-6").files)
    if (file.name.ends_with(".safetensors")) {
      EXPECT_NE(std::ranges::find(at_end, file), at_end.end()) << file.name << " differs";
    }
  for (const char* name : {"loss", "grad_norm", "eval_loss", "consumed_samples"}) {
    const auto expected = whole.numbers(name), actual = rest.numbers(name);
    ASSERT_EQ(actual.size(), expected.size() - 2) << name;
    EXPECT_TRUE(std::equal(actual.begin(), actual.end(), expected.begin() + 2)) << name;
  }
  // A third run begins with the end: nothing is left to do. Fine-tuning begins again, with the weights.
  const Words load{"--load=" + folder.path().string()};
  EXPECT_TRUE(run(kLlama + saving + load, 2).numbers("loss").empty());
  const auto tuned = run(kLlama + load + Words{"--finetune"}, 1), fresh = run(kLlama, 1);
  EXPECT_EQ(tuned.output.state.global_step, 3);
  EXPECT_NE(tuned.numbers("loss"), fresh.numbers("loss"));
  expect_contains(pretrain_refusal(kLlama + load + Words{"--num-layers=2"}), "num_layers is 4 there and 2 in this run");
  expect_contains(pretrain_refusal(kLlama + load + Words{"--ckpt-step=5"}), "checkpoint-5 is not a folder");
  expect_contains(pretrain_refusal(kLlama + load + Words{"--finetune", "--override-ckpt-iteration=3"}),
                  "exclude each other");
}

TEST(Pretrain, BadRunsAreNamed) {
  Words no_length = kLlama, no_tokenizer = kLlama;
  std::erase(no_length, "--train-iters=3");
  std::erase(no_tokenizer, "--vocab-size=63");
  std::erase(no_tokenizer, "--tokenizer-type=NullTokenizer");
  expect_contains(pretrain_refusal(no_length), "train_iters or train_samples");
  expect_contains(pretrain_refusal(no_tokenizer), "tokenizer_type");
  expect_contains(pretrain_refusal(kLlama + Words{"--reset-attention-mask"}), "reset_position_ids");
  expect_contains(pretrain_refusal(kLlama + Words{"--load=nowhere", "--exit-on-missing-checkpoint"}),
                  "exit_on_missing_checkpoint");
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() / "checkpoint-10");
  expect_contains(pretrain_refusal(kLlama + Words{"--load=" + folder.path().string()}), "checkpoint-10");

  PretrainFunctions functions;
  functions.datasets = [](RunContext&, const data::PerSplit<int64_t>&) { return run::ProvidedDatasets{}; };
  expect_contains(pretrain_refusal(kLlama, functions), "data_path");
  functions = {};
  functions.model = [](RunContext&, const run::ChunkRequest&) { return nullptr; };
  expect_contains(pretrain_refusal(kLlama, functions), "model provider");
  functions = {};
  functions.forward_step = [](const train::ForwardStepInput& step) -> train::ForwardStepResult {
    return {step.chunk.forward(step.input),
            [](const at::Tensor& x) -> train::LossResult { return {.loss = x.mean()}; }};
  };
  expect_contains(pretrain_refusal(kLlama, functions), "num_tokens");
  functions.forward_step = [](const train::ForwardStepInput& step) -> train::ForwardStepResult {
    return {step.chunk.forward(step.input), {}};
  };
  expect_contains(pretrain_refusal(kLlama, functions), "loss function");
}

// Sample i counts up from i.
class CountingRows : public data::Dataset {
 public:
  explicit CountingRows(int64_t samples) : samples_(samples) {}
  int64_t size() const override { return samples_; }
  data::Sample sample(int64_t index) const override {
    data::Sequence row;
    for (int64_t i = 0; i <= 16; ++i) row.ids.push_back(static_cast<int32_t>((index + i) % 63));
    row.labels = row.ids;
    return {.row = std::move(row), .rejected = std::nullopt};
  }

 private:
  const int64_t samples_;
};

// The path of `megalith pretrain` around pretrain(), for a program that brings data and model: nothing of either has to
// stand in the options, and the files of a run are written.
TEST(Pretrain, TheWholePathTakesDataAndModelOfAProgram) {
  const TempFolder folder;
  Words words = kLlama + Words{"--save=" + (folder / "out").string(), "--save-interval=100"};
  std::erase(words, "--mock-data");
  const auto parsed = config::parse_arguments(config::Dialect::kPretrain, words);
  run::RunRequest request{.work = run::Work::kPretrain, .options = parsed.args, .report = parsed.report};
  EXPECT_THROW(run::resolve(request), ConfigError);  // no option names data
  request.own_datasets = request.own_model = true;
  const run::RunPlan plan = run::resolve(request);
  EXPECT_FALSE(plan.settings.plannable);
  int chunks = 0;
  int64_t samples = 0;
  PretrainFunctions functions;
  functions.datasets = [&](RunContext&, const data::PerSplit<int64_t>& needed) {
    samples = needed[0];
    return run::ProvidedDatasets{.train = std::make_shared<CountingRows>(needed[0]), .valid = {}, .test = {}};
  };
  functions.model = [&](RunContext& context, const run::ChunkRequest& chunk) {
    ++chunks;
    return run::gpt_model_provider(context)(context, chunk);
  };
  EXPECT_EQ(run::launch_pretraining(plan, run::LaunchFlags{}, functions), run::kDone);
  EXPECT_EQ(chunks, 1);
  EXPECT_EQ(samples, 12);  // 3 steps of 4
  for (const char* name : {"metrics.jsonl", "args.yaml", "model.safetensors", "log/rank-0.log"})
    EXPECT_TRUE(std::filesystem::exists(folder / "out" / name)) << name;
}

}  // namespace
}  // namespace megalith::testing
