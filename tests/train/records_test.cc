// Texts and histograms that a run records on its way: they change nothing, and every layout records the same.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "megalith/base/error.h"
#include "megalith/inference/generate.h"
#include "megalith/optim/histograms.h"
#include "megalith/train/samples/text_sampler.h"
#include "tests/support/expect.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using tokenizer::Tokenizer;
using train::Prompt;
using train::TextSampler;

// The records that rank 0 gets.
struct Records {
  std::map<int64_t, train::TextSamples> samples;    // by step
  std::map<int64_t, optim::Histograms> histograms;  // by step
};

class RecordReader : public train::TrainerCallback {
 public:
  explicit RecordReader(Records& records) : records_(records) {}
  void on_samples(train::TrainerEvent& event) override { records_.samples[event.state.global_step] = *event.samples; }
  void on_histograms(train::TrainerEvent& event) override {
    records_.histograms[event.state.global_step] = *event.histograms;
  }

 private:
  Records& records_;
};

struct RecordedRun {
  std::vector<std::pair<double, double>> numbers;  // losses and gradient norms
  Records records;
  std::vector<std::vector<int64_t>> texts;  // those of the trained model
};

const std::vector<Prompt> kPrompts{{5, 17, 3}, {8}, {100, 101, 102, 103, 104}};

// Runs four steps, with records every `interval` steps; 0 for none.
RecordedRun run_recorded(const std::string& model, const TrainerCase& how, int64_t interval) {
  SCOPED_TRACE(model + ", " + how.name);
  const auto folder = golden_folder(model);
  const auto sequences = random_sequences(20, 256);
  std::mutex mutex;
  RecordedRun run;
  run_trainer_ranks(folder, how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    Records records;
    train::TrainerSetup setup = r.setup(dataset_of(sequences));
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    setup.callbacks.push_back(std::make_unique<RecordReader>(records));
    train::TrainerSettings settings = r.settings();
    settings.histogram_interval = interval;
    if (interval > 0)
      setup.text_sampler = std::make_shared<TextSampler>(TextSampler::Settings{.every = interval, .max_new_tokens = 6},
                                                         Tokenizer::bytes(), kPrompts);
    train::Trainer trainer(r.models, settings, std::move(setup));
    trainer.train();
    std::vector<inference::TextRequest> requests;
    for (const Prompt& prompt : kPrompts) requests.push_back({prompt, 0});
    const auto texts = inference::generate_texts(r.models, requests, {.max_new_tokens = 6, .stop_ids = {257}});
    const std::lock_guard lock(mutex);
    if (r.rank.rank != 0) {
      EXPECT_TRUE(records.samples.empty() || records.samples.begin()->second.generated.empty());
      return;
    }
    for (const train::MetricList& line : heard.lines)
      if (const auto loss = line.find("loss")) run.numbers.emplace_back(*loss, *line.find("grad_norm"));
    run.records = std::move(records);
    run.texts = texts;
  });
  return run;
}

TrainerCase record_case(std::string name, int tp, int pp, int dp,
                        const std::function<void(TrainerCase&)>& change = {}) {
  TrainerCase how;
  how.name = std::move(name);
  how.tp = tp, how.pp = pp, how.dp = dp;
  how.args.batch.gradient_accumulation_steps = pp > 1 ? 4 / dp : 1;
  how.args.batch.micro_batch_size = 8 / dp / how.args.batch.gradient_accumulation_steps;
  if (change) change(how);
  return how;
}

void overlapped_shards(TrainerCase& how) {
  how.args.optimizer.use_distributed_optimizer = true;
  how.args.ddp.overlap_grad_reduce = how.args.ddp.overlap_param_gather = true;
  how.args.ddp.bucket_size = 5000;
}

std::vector<TrainerCase> record_cases() {
  const auto split_tokens = [](TrainerCase& how) { how.args.parallel.sequence_parallel = true; };
  return {record_case("tp", 2, 1, 1),
          record_case("tp sp", 2, 1, 1, split_tokens),
          record_case("pp", 1, 2, 1),
          record_case("vpp", 1, 2, 1, [](TrainerCase& how) { how.vpp = 2; }),
          record_case("dp", 1, 1, 2),
          record_case("dp sharded, overlapped", 1, 1, 2, overlapped_shards),
          record_case("tp sp pp dp sharded", 2, 2, 2, [&](TrainerCase& how) {
            split_tokens(how);
            overlapped_shards(how);
          })};
}

// ---- Texts ----

TEST(RunRecords, NumbersAreThoseOfARunWithoutThem) {
  std::vector<TrainerCase> cases = record_cases();
  cases.push_back(record_case("one rank", 1, 1, 1));
  for (TrainerCase& how : cases) {
    how.args.layer.hidden_dropout = 0.1;  // random streams of the run show in its losses
    const RecordedRun recorded = run_recorded("gpt2", how, 1);
    EXPECT_EQ(recorded.numbers, run_recorded("gpt2", how, 0).numbers) << how.name;
    EXPECT_EQ(recorded.numbers.size(), 4U);
    EXPECT_EQ(recorded.records.samples.size(), 4U);
    EXPECT_EQ(recorded.records.histograms.size(), 4U);
  }
}

// Routers count tokens and learn from the counts: those of generation must not be among them.
TEST(RunRecords, RoutersDoNotCountGeneratedTokens) {
  TrainerCase experts = record_case("ep", 1, 1, 2);
  experts.args.parallel.ep = 2;
  for (const char* model : {"mixtral", "deepseek_v3"})
    EXPECT_EQ(run_recorded(model, experts, 1).numbers, run_recorded(model, experts, 0).numbers) << model;
}

TEST(RunRecords, TextsAreThoseOfTheCurrentWeights) {
  const Tokenizer bytes = Tokenizer::bytes();
  for (const TrainerCase& how : record_cases()) {
    const RecordedRun run = run_recorded("llama", how, 2);
    ASSERT_EQ(run.records.samples.size(), 2U) << how.name;
    const train::TextSamples& last = run.records.samples.at(4);
    ASSERT_EQ(last.generated.size(), kPrompts.size());
    for (size_t i = 0; i < kPrompts.size(); ++i) {
      const std::vector<int32_t> ids(run.texts[i].begin(), run.texts[i].end());
      const std::vector<int32_t> prompt(kPrompts[i].begin(), kPrompts[i].end());
      EXPECT_EQ(last.generated[i].text, bytes.decode(ids)) << how.name;
      EXPECT_EQ(last.generated[i].prompt, bytes.decode(prompt));
    }
    EXPECT_EQ(last.trained.size(), 2U);
  }
}

TEST(RunRecords, ModelsThatCannotWriteAreRefusedBeforeTheFirstStep) {
  run_trainer_ranks(golden_folder("gpt2"), {}, [](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(8, 256)));
    setup.text_sampler = std::make_shared<TextSampler>(TextSampler::Settings{.every = 1, .max_new_tokens = 62},
                                                       Tokenizer::bytes(), kPrompts);
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    expect_error<ConfigError>([&] { trainer.train(); }, {"generate_samples_max_new_tokens 62", "64 positions"});
  });
  run_trainer_ranks(golden_folder("gpt2"), {}, [](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(8, 256)));
    setup.text_sampler =
        std::make_shared<TextSampler>(TextSampler::Settings{}, Tokenizer::bytes(), std::vector<Prompt>{{257}});
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    expect_error<DataError>([&] { trainer.train(); }, {"token id 257", "vocabulary of 256"});
  });
}

data::Sequence dialog(const std::string& question, const std::string& answer) {
  data::Sequence row;
  for (const char c : question + answer) {
    row.ids.push_back(static_cast<unsigned char>(c));
    row.labels.push_back(row.ids.size() > question.size() ? row.ids.back() : data::kIgnoredLabel);
  }
  return row;
}

TEST(TextSampler, ShowsSamplesAsTheModelSawThem) {
  const std::vector<data::Sequence> rows{dialog("What is it? ", "A dürre"), dialog("Q:", "yes")};
  const auto dataset = dataset_of(rows);
  const std::vector<data::Sample> samples{dataset->sample(0), dataset->sample(1)};
  const data::Collator collator(data::CollatorOptions{.pad_id = 0});
  const auto seen = train::trained_samples(collator.collate(samples), Tokenizer::bytes());
  ASSERT_EQ(seen.size(), 2U);
  ASSERT_EQ(seen[0].spans.size(), 2U);
  EXPECT_EQ(seen[0].spans[0].text, "What is it? ");
  EXPECT_FALSE(seen[0].spans[0].in_loss);
  EXPECT_EQ(seen[0].spans[1].text, "A dürre");
  EXPECT_TRUE(seen[0].spans[1].in_loss);
  EXPECT_EQ(seen[0].tokens, 20);
  EXPECT_EQ(seen[0].loss_tokens, 8);
  EXPECT_EQ(seen[0].padding, 0);
  ASSERT_EQ(seen[1].spans.size(), 2U);
  EXPECT_EQ(seen[1].spans[0].text, "Q:");
  EXPECT_EQ(seen[1].spans[1].text, "yes");
  EXPECT_EQ(seen[1].tokens, 5);
  EXPECT_EQ(seen[1].padding, 15);
}

TEST(TextSampler, PromptsEndWhereTheLossBegins) {
  const auto text = [](size_t length) { return dialog("", std::string(length, 'x')); };
  const auto dataset = dataset_of({dialog("Q:", "yes"), text(100), text(6), dialog("Z", "")});
  const std::vector<Prompt> prompts = train::prompts_from(*dataset, 4);
  ASSERT_EQ(prompts.size(), 3U) << "a single token has no continuation to compare with";
  EXPECT_EQ(prompts[0], (Prompt{'Q', ':'}));
  EXPECT_EQ(prompts[1], Prompt(16, 'x'));
  EXPECT_EQ(prompts[2], Prompt(3, 'x'));
}

// ---- Histograms ----

int64_t moved(const optim::BinCounts& a, const optim::BinCounts& b) {
  std::map<int, int64_t> difference;
  for (size_t i = 0; i < a.counts.size(); ++i) difference[a.first + static_cast<int>(i)] += a.counts[i];
  for (size_t i = 0; i < b.counts.size(); ++i) difference[b.first + static_cast<int>(i)] -= b.counts[i];
  int64_t sum = 0;
  for (const auto& [bin, count] : difference) sum += std::abs(count);
  return sum;
}

// The weights of the first step are the same bits in every layout. Gradients differ in their last bits, so a few of
// them fall on the other side of a bin's edge.
void expect_same_histograms(const optim::Histograms& actual, const optim::Histograms& expected,
                            const std::string& name) {
  ASSERT_EQ(actual.parts.size(), expected.parts.size()) << name;
  for (size_t i = 0; i < expected.parts.size(); ++i) {
    const optim::PartHistograms &a = actual.parts[i], &b = expected.parts[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.weights, b.weights) << name << ", " << b.name;
    EXPECT_EQ(a.gradients.total(), b.gradients.total()) << name << ", " << b.name;
    const int64_t changed = moved(a.gradients.negative, b.gradients.negative) +
                            moved(a.gradients.positive, b.gradients.positive) +
                            std::abs(a.gradients.zeros - b.gradients.zeros);
    EXPECT_LE(changed, 4 + b.gradients.total() / 50) << name << ", " << b.name;
  }
}

TEST(RunRecords, HistogramsAreThoseOfOneRank) {
  for (const char* model : {"llama", "qwen2"}) {  // with a head of its own, and with a tied one
    const optim::Histograms alone = run_recorded(model, {}, 1).records.histograms.at(1);
    for (const TrainerCase& how : record_cases())
      expect_same_histograms(run_recorded(model, how, 1).records.histograms.at(1), alone,
                             std::string(model) + ", " + how.name);
  }
}

TEST(RunRecords, HistogramsCountEveryExpertOnce) {
  const optim::Histograms alone = run_recorded("mixtral", {}, 1).records.histograms.at(1);
  const auto experts = [](TrainerCase& how) { how.args.parallel.ep = 2; };
  for (const TrainerCase& how :
       {record_case("ep", 1, 1, 2, experts), record_case("ep sharded", 1, 1, 4, [&](TrainerCase& how) {
          experts(how);
          overlapped_shards(how);
        })})
    expect_same_histograms(run_recorded("mixtral", how, 1).records.histograms.at(1), alone, how.name);
}

TEST(RunRecords, HistogramsCoverTheModelInItsOrder) {
  const optim::Histograms histograms = run_recorded("llama", {}, 2).records.histograms.at(2);
  int64_t weights = 0, gradients = 0;
  std::vector<std::string> names;
  for (const optim::PartHistograms& part : histograms.parts) {
    weights += part.weights.total();
    gradients += part.gradients.total();
    names.push_back(part.name);
  }
  int64_t elements = 0;
  run_trainer_ranks(golden_folder("llama"), {}, [&](const TrainerRank& r) {
    for (const nn::Parameter* parameter : r.models.parameters()) elements += parameter->value.numel();
  });
  EXPECT_EQ(weights, elements);
  EXPECT_EQ(gradients, elements);
  EXPECT_EQ(names.front(), "embedding");
  EXPECT_EQ(names[1].substr(0, 9), "layers.0.");
  EXPECT_EQ(names.back(), "head");
}

TEST(Histograms, BinsAreQuartersOfPowersOfTwo) {
  EXPECT_EQ(optim::bin_edge(0), 1);
  EXPECT_EQ(optim::bin_edge(3), 1.75);
  EXPECT_EQ(optim::bin_edge(4), 2);
  EXPECT_EQ(optim::bin_edge(-1), 0.875);
  EXPECT_EQ(optim::bin_edge(-4), 0.5);
  run_ranks(1, [](const Rank& rank) {
    const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 1}));
    const float infinity = std::numeric_limits<float>::infinity();
    const at::Tensor weights = at::tensor({0.F, -0.F, 1e-40F, 1.F, 1.2F, 1.25F, -2.F, -0.9F});
    const at::Tensor grads = at::tensor({4.F, 4.F, -8.F, std::nanf(""), infinity, -infinity, 0.F, 4.F});
    const std::string name = "layers.3.mlp.up.weight";
    const nn::ParameterPart whole{.name = name, .global_shape = {8}, .offset = {0}, .extent = {8}};
    const nn::Parameter parameter(nn::ParameterSpec{.name = name, .parts = {whole}}, weights);
    optim::StateBlock block;
    block.grads = grads;
    block.params = weights;
    block.pieces = {{.parameter = &parameter, .begin = 0, .end = 8}};
    const std::vector<optim::StateBlock> blocks{block};
    const optim::HistogramCounter counter(blocks, /*sharded=*/false, context);
    const optim::Histograms histograms = counter.count(/*loss_scale=*/4).read();
    ASSERT_EQ(histograms.parts.size(), 1U);
    const optim::PartHistograms& part = histograms.parts[0];
    EXPECT_EQ(part.name, "layers.3.mlp");
    EXPECT_EQ(part.weights,
              (optim::Histogram{.zeros = 3, .negative = {-1, {1, 0, 0, 0, 0, 1}}, .positive = {0, {2, 1}}}));
    EXPECT_EQ(part.gradients,
              (optim::Histogram{.zeros = 1, .non_finite = 3, .negative = {4, {1}}, .positive = {0, {3}}}));
  });
}

}  // namespace
}  // namespace megalith::testing
