#include "megalith/config/parser.h"

#include <gtest/gtest.h>

#include <random>

#include "megalith/base/error.h"
#include "megalith/config/option_report.h"
#include "megalith/config/option_table.h"
#include "tests/config/parse_support.h"
#include "tests/support/expect.h"

namespace megalith::config {
namespace {

TEST(Parser, TakesEveryWayToWriteAnOption) {
  const std::vector<Words> ways{{"--tensor_model_parallel_size", "2"},
                                {"--tensor_model_parallel_size=2"},
                                {"--tensor-model-parallel-size", "2"},
                                {"--tensor-model-parallel-size=2"},
                                {"tensor_model_parallel_size=2"},
                                {"--tp", "2"},
                                {"--tp=2"},
                                {"tp=2"}};
  for (const Words& words : ways) EXPECT_EQ(args_of(words).parallel.tp, 2) << words.front();
}

TEST(Parser, DialectsHaveTheirOwnDefaults) {
  const TrainingArguments train = args_of({});
  const TrainingArguments pretrain = args_of({}, Dialect::kPretrain);
  EXPECT_EQ(train.seeds.seed, 42);
  EXPECT_EQ(pretrain.seeds.seed, 1234);
  EXPECT_EQ(train.optimizer.weight_decay, 0.0);
  EXPECT_EQ(pretrain.optimizer.weight_decay, 0.01);
  EXPECT_EQ(train.batch.micro_batch_size, 8);
  EXPECT_EQ(pretrain.batch.micro_batch_size, std::nullopt);
  EXPECT_EQ(train.logging.steps, 500);
  EXPECT_EQ(pretrain.logging.steps, 100);
  EXPECT_EQ(pretrain.layer.hidden_dropout, 0.1);
  EXPECT_EQ(train.layer.hidden_dropout, std::nullopt);
}

TEST(Parser, BothSpellingsOfOneThingSetOneField) {
  const Words hf{"--learning_rate=1e-3", "--max_grad_norm=0.5", "--per_device_train_batch_size=3",
                 "--adam_epsilon=1e-6",  "--max_steps=7",       "--logging_steps=9",
                 "--save_steps=11",      "--eval_steps=13",     "--output_dir=out"};
  const Words megatron{
      "--lr",          "1e-3", "--clip-grad",    "0.5", "--micro-batch-size", "3",  "--adam-eps",      "1e-6",
      "--train-iters", "7",    "--log-interval", "9",   "--save-interval",    "11", "--eval-interval", "13",
      "--save",        "out"};
  EXPECT_EQ(args_of(hf), args_of(megatron));
  EXPECT_EQ(args_of(hf).optimizer.learning_rate, 1e-3);
  EXPECT_EQ(args_of({"--evaluation_strategy", "epoch"}).eval.strategy, Interval::kEpoch);
}

RawValue word(const std::string& text) { return {RawValue::Kind::kWords, {text}}; }

// The form in which bindings pass on what a program has written.
TEST(Parser, TakesOptionsByNameFromAProgram) {
  const std::vector<NamedValue> values{{"tp", word("2")},
                                       {"output_dir", {RawValue::Kind::kNull, {}}},
                                       {"run_name", word("null")},
                                       {"lora_target", word("[a]")},
                                       {"dataset", {RawValue::Kind::kWords, {"a", "b"}}},
                                       {"lr_scheduler_kwargs", {RawValue::Kind::kJson, {R"({"min_lr": 1e-6})"}}}};
  const TrainingArguments args = parse_named(Dialect::kTrain, values).args;
  EXPECT_EQ(args.parallel.tp, 2);
  EXPECT_EQ(args.save.output_dir, std::nullopt);
  EXPECT_EQ(args.logging.run_name, "null");
  EXPECT_EQ(args.data.dataset, (std::vector<std::string>{"a", "b"}));

  const TempFile file("run.yaml", "tp: 4\nseed: 7\n");
  const TrainingArguments both = parse_named(Dialect::kTrain, values, file.path()).args;
  EXPECT_EQ(both.parallel.tp, 2) << "what the program gives wins";
  EXPECT_EQ(both.seeds.seed, 7);
}

TEST(Parser, RefusesWrongOptionsOfAProgramTogether) {
  const std::vector<NamedValue> values{
      {"lerning_rate", word("1")}, {"seed", word("soon")}, {"no_delay_grad_reduce", word("true")}};
  std::string message;
  try {
    parse_named(Dialect::kTrain, values);
  } catch (const ConfigError& error) {
    message = error.what();
  }
  EXPECT_TRUE(contains(message, "unknown option lerning_rate; did you mean learning_rate?"));
  EXPECT_TRUE(contains(message, "seed is \"soon\"; expected a whole number"));
  EXPECT_TRUE(contains(message, "no_delay_grad_reduce"));
  EXPECT_THROW(parse_named(Dialect::kTrain, {}, "run.txt"), ConfigError);
}

struct BoolCase {
  Words words;
  bool expected;
};

TEST(Parser, Booleans) {
  const std::vector<BoolCase> cases{
      {{"--bf16"}, true},         {{"--bf16", "--fp16"}, true}, {{"--bf16", "yes"}, true},
      {{"--bf16", "TRUE"}, true}, {{"--bf16", "t"}, true},      {{"--bf16=Y"}, true},
      {{"--bf16", "1"}, true},    {{"--bf16", "no"}, false},    {{"--bf16=False"}, false},
      {{"--bf16", "f"}, false},   {{"bf16=0"}, false},          {{"--bf16", "--bf16=n"}, false},
      {{"--bf16", "tp=2"}, true}};
  for (const BoolCase& item : cases) EXPECT_EQ(args_of(item.words).precision.bf16, item.expected) << item.words.back();
  EXPECT_TRUE(contains(error_of({"--bf16", "maybe"}), "--bf16 is \"maybe\""));
}

TEST(Parser, NoFormOnlyForBooleansThatAreOnByDefault) {
  EXPECT_FALSE(args_of({"--no_delay_grad_reduce"}).ddp.delay_grad_reduce);
  EXPECT_FALSE(args_of({"--no-delay-grad-reduce"}).ddp.delay_grad_reduce);
  EXPECT_TRUE(args_of({"--no_delay_grad_reduce", "--delay_grad_reduce"}).ddp.delay_grad_reduce);
  EXPECT_FALSE(args_of({"--delay_grad_reduce", "--no_delay_grad_reduce"}).ddp.delay_grad_reduce);
  EXPECT_FALSE(args_of({"--no-overlap-p2p-communication"}, Dialect::kPretrain).pipeline.overlap_p2p_comm);
  EXPECT_FALSE(args_of({"--disable-bias-linear"}, Dialect::kPretrain).layer.add_bias_linear.value());
  EXPECT_TRUE(contains(error_of({"--no_bf16"}), "bf16 is off by default"));
  EXPECT_TRUE(contains(error_of({"--no_delay_grad_reduce=true"}), "takes no value"));
}

TEST(Parser, OptionalBooleansMayBeBare) {
  EXPECT_EQ(args_of({}).data.packing, std::nullopt);
  EXPECT_EQ(args_of({"--packing"}).data.packing, true);
  EXPECT_EQ(args_of({"--packing", "false"}).data.packing, false);
  EXPECT_EQ(args_of({"packing=null"}).data.packing, std::nullopt);
}

TEST(Parser, NumbersAreStrict) {
  EXPECT_EQ(args_of({"--max_steps", "-1"}).run.max_steps, -1);
  EXPECT_EQ(args_of({"--learning_rate", "1e-3"}).optimizer.learning_rate, 1e-3);
  for (const char* bad : {"1e3", "1.0", "None", "", "x", "99999999999999999999"})
    EXPECT_TRUE(contains(error_of({"--max_steps", bad}), "--max_steps")) << bad;
  EXPECT_TRUE(contains(error_of({"--learning_rate", "None"}), "expected a finite number"));
  EXPECT_TRUE(contains(error_of({"--learning_rate", "inf"}), "--learning_rate"));
  EXPECT_TRUE(contains(error_of({"--cutoff_len", "3000000000"}), "allowed"));
  EXPECT_TRUE(contains(error_of({"--tp", "0"}), "1 or more"));
}

TEST(Parser, NoneIsAWordOnTheCommandLine) {
  EXPECT_EQ(args_of({"--resume_from_checkpoint", "None"}).save.resume_from_checkpoint, "None");
}

TEST(Parser, ChoicesAreExact) {
  EXPECT_EQ(args_of({"--recompute_granularity", "full"}).recompute.granularity, RecomputeGranularity::kFull);
  EXPECT_TRUE(contains(error_of({"--recompute_granularity", "Full"}), "allowed: full and selective"));
  EXPECT_EQ(args_of({"--lr-decay-style", "WSD"}, Dialect::kPretrain).schedule.lr_decay_style, LrDecayStyle::kWsd);
}

TEST(Parser, Lists) {
  EXPECT_EQ(args_of({"--data_path", "0.3", "a", "0.7", "b", "--tp", "2"}).indexed.data_path,
            (Words{"0.3", "a", "0.7", "b"}));
  EXPECT_EQ(args_of({"--data_path", "a", "--data_path", "b"}).indexed.data_path, Words{"b"});
  EXPECT_EQ(args_of({"--dataset", "a, b"}).data.dataset, (Words{"a", "b"}));
  EXPECT_EQ(args_of({"--rampup-batch-size", "16", "8", "1000"}).batch.rampup_batch_size,
            (std::vector<int64_t>{16, 8, 1000}));
  EXPECT_EQ(args_of({"rampup_batch_size=[16, 8, 1000]"}).batch.rampup_batch_size, (std::vector<int64_t>{16, 8, 1000}));
  EXPECT_TRUE(contains(error_of({"--data_path"}), "--data_path needs a value"));
  EXPECT_TRUE(contains(error_of({"--recompute_modules", "mlp,core"}), "allowed: core_attn"));
}

TEST(Parser, Dictionaries) {
  const auto kwargs = [](const char* text) {
    return args_of({"--lr_scheduler_kwargs", text}).schedule.lr_scheduler_kwargs.text;
  };
  EXPECT_EQ(kwargs("{}"), "{}");
  EXPECT_EQ(kwargs(R"({"min_lr": 1e-6})"), R"({"min_lr":1e-06})");
  EXPECT_EQ(kwargs(R"({"a": "true", "b": "8", "c": "0.5", "d": "1e-6", "e": {"f": "False"}})"),
            R"({"a":true,"b":8,"c":0.5,"d":"1e-6","e":{"f":false}})");
  const TempFile file("kwargs.json", R"({"min_lr": 0.5, "text": "8"})");
  EXPECT_EQ(kwargs(file.path().c_str()), R"({"min_lr":0.5,"text":"8"})");
  EXPECT_TRUE(contains(error_of({"--lr_scheduler_kwargs", "{bad"}), "--lr_scheduler_kwargs"));
  EXPECT_TRUE(contains(error_of({"--additional_configs", "/nowhere.json"}), "/nowhere.json"));
}

TEST(Parser, TextMayStartWithADashIfItHoldsABlank) {
  EXPECT_EQ(args_of({"--default_system", "- be kind"}).data.default_system, "- be kind");
  EXPECT_TRUE(contains(error_of({"--default_system", "-x"}), "--default_system needs a value"));
}

TEST(Parser, UnknownWordsAreNamedWithTheNearestOption) {
  EXPECT_TRUE(contains(error_of({"--lerning_rate", "1"}), "did you mean --learning_rate"));
  EXPECT_TRUE(contains(error_of({"--learning", "1"}), "not abbreviated: did you mean --learning_rate"));
  EXPECT_TRUE(contains(error_of({"--tensor-model_parallel-size", "2"}), "not both"));
  EXPECT_TRUE(contains(error_of({"--Bf16"}), "--bf16"));
  EXPECT_TRUE(contains(error_of({"stray"}), "\"stray\" is left over"));
  EXPECT_TRUE(contains(error_of({"lr_rate=2"}), "unknown option lr_rate"));
  EXPECT_TRUE(contains(error_of({"-x"}), "\"-x\""));
  EXPECT_TRUE(contains(error_of({"--"}), "\"--\""));
}

TEST(Parser, ReportsEveryProblemAtOnce) {
  const std::string message = error_of({"--tp", "x", "--bogus_option", "1", "--bf16=perhaps", "left"});
  for (const char* part : {"--tp", "--bogus_option", "--bf16", "\"left\""}) EXPECT_TRUE(contains(message, part));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 3);
}

TEST(Parser, TwoNamesOfOneOptionMustAgree) {
  EXPECT_EQ(args_of({"--tp", "2", "--tensor_model_parallel_size", "2"}).parallel.tp, 2);
  EXPECT_EQ(args_of({"--tp", "2", "--tp", "4"}).parallel.tp, 4);
  EXPECT_TRUE(contains(error_of({"--tp", "2", "--tensor_model_parallel_size", "4"}), "two names of one option"));
  EXPECT_TRUE(contains(error_of({"--moe_aux_loss_coef", "0.1", "--moe_aux_loss_coeff", "0.2"}), "moe_aux_loss_coef"));
}

TEST(Parser, VirtualSizeOfOneMeansNone) {
  EXPECT_EQ(args_of({"--vpp", "1"}).pipeline.vpp, std::nullopt);
  EXPECT_EQ(args_of({"--num-virtual-stages-per-pipeline-rank", "2"}).pipeline.vpp, 2);
}

TEST(Parser, TokensSeenTakesABooleanToo) {
  EXPECT_EQ(args_of({"--include_num_input_tokens_seen"}).logging.include_num_input_tokens_seen, TokensSeen::kAll);
  EXPECT_EQ(args_of({"--include_num_input_tokens_seen=false"}).logging.include_num_input_tokens_seen, TokensSeen::kNo);
  EXPECT_EQ(args_of({"include_num_input_tokens_seen=non_padding"}).logging.include_num_input_tokens_seen,
            TokensSeen::kNonPadding);
}

TEST(Parser, SecretsAreNotShown) {
  for (const std::string option : {"hf_hub_token", "push_to_hub_token", "swanlab_api_key"}) {
    const ParseResult result = parse({"--" + option + "=hf_SECRET789"});
    ASSERT_EQ(result.notes.size(), 1u) << option;
    EXPECT_EQ(result.notes[0].find("SECRET"), std::string::npos) << result.notes[0];
    EXPECT_TRUE(contains(result.notes[0], option + " = (not shown) has no effect")) << result.notes[0];
  }
}

TEST(Parser, ReportSaysWhatBecomesOfEachOption) {
  const ParseResult result = parse({"--tp=2", "--stage=ppo", "--flash_attn", "fa2", "--plot_loss=false", "--optim",
                                    "lion_32bit", "--use_mca", "--seed", "42"});
  const auto& uses = result.report.uses;
  ASSERT_EQ(uses.size(), 7u);
  EXPECT_EQ(uses[0].given, "--tp");
  EXPECT_EQ(uses[0].name, "tensor_model_parallel_size");
  EXPECT_EQ(uses[0].status, OptionStatus::kImplemented);
  EXPECT_EQ(uses[1].status, OptionStatus::kRefused);
  EXPECT_EQ(result.args.run.stage, Stage::kSft);
  ASSERT_EQ(result.report.refused().size(), 2u);
  EXPECT_EQ(result.report.refused()[1]->name, "optim");
  EXPECT_TRUE(result.report.planned().empty());
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_TRUE(contains(result.notes[0], "--flash_attn = fa2 has no effect"));
  try {
    result.report.check_runnable();
    FAIL() << "a run must not start on these options";
  } catch (const ConfigError& error) {
    for (const char* part : {"--stage = ppo", "--optim = lion_32bit"}) EXPECT_TRUE(contains(error.what(), part));
  }
  EXPECT_NO_THROW(parse({"--tp=2", "--finetuning_type=full"}).report.check_runnable());
  EXPECT_THROW(parse({"--use_mca=false"}).report.check_not_refused(), ConfigError);
  EXPECT_THROW(parse({"--split_batches"}).report.check_not_refused(),
               ConfigError);  // another number of samples per step
}

// They would choose other weights than those that a run finds.
TEST(Parser, OptionsThatChooseAModelAreNotIgnored) {
  for (const std::string word : {"--model_revision=v2", "--cache_dir=/data/hub"})
    EXPECT_EQ(parse({word}).report.refused().size(), 1u) << word;
  EXPECT_NO_THROW(parse({"--model_revision=main"}).report.check_not_refused());
}

TEST(OptionReport, OfArgumentsThatAProgramHasSet) {
  for (const Dialect dialect : {Dialect::kTrain, Dialect::kPretrain})
    EXPECT_TRUE(report_of(default_arguments(dialect)).uses.empty());
  TrainingArguments args = default_arguments(Dialect::kTrain);
  args.parallel.tp = 2;
  args.fusion.cuda_graph_impl = "transformer_engine";
  args.comm.use_gloo_process_groups = false;
  const OptionReport report = report_of(args);
  EXPECT_EQ(report.uses.size(), 3u);
  ASSERT_EQ(report.refused().size(), 1u);
  EXPECT_EQ(report.refused()[0]->name, "cuda_graph_impl");
  ASSERT_EQ(report.notes().size(), 1u);
  EXPECT_TRUE(contains(report.notes()[0], "use_gloo_process_groups = false has no effect"));
  try {
    report.check_runnable();
    FAIL() << "a run must not start on these arguments";
  } catch (const ConfigError& error) {
    EXPECT_TRUE(contains(error.what(), "cuda_graph_impl = transformer_engine (set by the program)")) << error.what();
  }
}

// An option that nothing acts on yet stops a run, unless it is at its default.
TEST(OptionReport, PlannedOptionsStopARun) {
  OptionReport report;
  report.uses.push_back({.given = "--later",
                         .name = "later",
                         .value = "true",
                         .origin = "command line",
                         .status = OptionStatus::kPlanned,
                         .reason = "gpu",
                         .is_default = false});
  ASSERT_EQ(report.planned().size(), 1u);
  EXPECT_NO_THROW(report.check_not_refused());
  testing::expect_error<ConfigError>([&] { report.check_runnable(); }, {"--later = true", "(gpu) is not built yet"});
  report.uses[0].is_default = true;
  EXPECT_NO_THROW(report.check_runnable());
}

TEST(OptionTable, NothingIsPlanned) {
  for (const Option& option : OptionTable::instance().options())
    EXPECT_NE(option.status, OptionStatus::kPlanned) << option.name;
}

TEST(Parser, EveryStageIsBuilt) {
  for (const char* stage : {"pt", "sft", "dpo"})
    for (const char* type : {"full", "freeze", "lora"})
      EXPECT_TRUE(
          parse({fmt::format("--stage={}", stage), fmt::format("--finetuning_type={}", type)}).report.planned().empty())
          << stage << " " << type;
}

TEST(Parser, CommandsBringOptionsOfTheirOwn) {
  std::optional<int64_t> world_size;
  std::optional<std::string> order;
  bool json = false;
  const std::vector<CommandOption> own{
      {"world_size", "ranks", &world_size}, {"order", "axes", &order}, {"json", "as JSON", &json}};
  const Words words{"--world-size", "16", "--tp", "4", "--json", "--order=tp-cp-ep-dp-pp", "pp=2"};
  const ParseResult result = parse_arguments(Dialect::kTrain, words, own);
  EXPECT_EQ(world_size, 16);
  EXPECT_EQ(order, "tp-cp-ep-dp-pp");
  EXPECT_TRUE(json);
  EXPECT_EQ(result.args.parallel.tp, 4);
  EXPECT_EQ(result.args.parallel.pp, 2);
  EXPECT_EQ(result.report.uses.size(), 2u);
  EXPECT_THROW(parse_arguments(Dialect::kTrain, Words{"--world-size", "many"}, own), ConfigError);
  EXPECT_THROW(parse_arguments(Dialect::kTrain, Words{"--world-size"}, own), ConfigError);
  try {
    parse_arguments(Dialect::kTrain, Words{"--word-size", "4"}, own);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(contains(error.what(), "--world_size"));
  }
}

TEST(Parser, GarbageNeverDoesMoreThanThrowConfigError) {
  std::mt19937 random(1234);
  const auto& names = OptionTable::instance().names();
  const Words pieces{"--",   "-",  "=", "1",   "-1",       "1e3", "true", "{", "}",   "[1,2]",
                     "null", "\"", "'", "a b", "\xff\xfe", ",",   "|",    ":", "0.5", "x.yaml"};
  const auto pick = [&](const auto& from) { return from[random() % from.size()]; };
  for (int round = 0; round < 3000; ++round) {
    Words words;
    for (size_t i = 0, count = random() % 6; i < count; ++i) {
      std::string word;
      if (random() % 2 == 0) word = (random() % 4 == 0 ? "" : "--") + pick(names) + (random() % 2 == 0 ? "=" : "");
      for (size_t k = 0, parts = random() % 3; k < parts; ++k) word += pick(pieces);
      words.push_back(word);
    }
    try {
      parse_arguments(random() % 2 == 0 ? Dialect::kTrain : Dialect::kPretrain, words);
    } catch (const ConfigError& error) {
      EXPECT_STRNE(error.what(), "");
    }
  }
}

}  // namespace
}  // namespace megalith::config
