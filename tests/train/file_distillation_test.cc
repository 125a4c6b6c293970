// Training towards a teacher's files: what any layout writes, and that training with them is training beside the
// teacher.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "megalith/run/resolve/preference_settings.h"
#include "megalith/train/distillation/file_objective.h"
#include "megalith/train/distillation/taught_samples.h"
#include "megalith/train/distillation/write_teacher_files.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/train/distillation_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocabularyOfQwen = 256;

// SGD: it does not magnify the rounding of small gradients.
TrainerCase file_case(const std::string& name, int microbatches, const std::function<void(TrainerCase&)>& change = {}) {
  TrainerCase how{.name = name};
  how.args.run.max_steps = 3;
  how.args.optimizer.optimizer = config::OptimizerKind::kSgd;
  how.args.optimizer.optim = config::HfOptimizer::kSgd;
  how.args.optimizer.learning_rate = 0.01;
  how.args.distillation = {.loss = config::KdLoss::kJsd, .beta = 0.3, .temperature = 1.5, .ratio = 0.6};
  how.args.batch.gradient_accumulation_steps = microbatches;
  if (change) change(how);
  how.args.parallel.sequence_parallel = how.args.parallel.sequence_parallel || how.tp > 1;
  how.args.batch.micro_batch_size = 8 / how.dp / microbatches;
  return how;
}

struct FilesToWrite {
  fs::path folder, teacher;
  int64_t classes = 16;
  std::vector<data::Sequence> samples;
};

// Runs the teacher in the layout of a case; the student only gives the ranks their groups.
void write_files(const TrainerCase& how, const FilesToWrite& request) {
  SCOPED_TRACE(how.name);
  run_trainer_ranks(golden_folder("qwen3"), how, [&](const TrainerRank& r) {
    const auto teacher = teacher_on(r, request.teacher);
    const std::vector<train::EvalData> data{{.dataset = dataset_of(request.samples), .collator = r.collator}};
    const train::TeacherFilesRequest what{.folder = request.folder,
                                          .classes = request.classes,
                                          .temperature = r.args.distillation.temperature,
                                          .teacher = "teacher",
                                          .data = {{"cutoff_len", "128"}},
                                          .micro_batch_size = 2,
                                          .file_bytes = 4000};
    train::write_teacher_files(data, *teacher, what, r.models.context());
  });
}

// Trains with files, on `samples`, which may be packed.
RunLog train_with_files(const TrainerCase& how, const fs::path& folder, const std::vector<data::Sequence>& samples) {
  SCOPED_TRACE(how.name);
  RunLog result;
  run_trainer_ranks(golden_folder("qwen3"), how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    const train::DistillationSettings loss = run::distillation_settings(r.args.distillation);
    const auto files = std::make_shared<const train::TeacherFiles>(folder);
    const auto plain = dataset_of(samples);
    train::check_taught(*plain, *files, {}, "training data", r.models.context());
    const auto dataset = train::with_teacher_files(plain, files, loss.temperature, loss.tail);
    train::TrainerSetup setup = r.setup(dataset, dataset);
    setup.objective = std::make_unique<train::FileDistillationObjective>(loss, files->index());
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const train::TrainOutput output = trainer.train();
    RunLog mine{heard.lines, trainer.evaluate(), output};
    if (r.rank.rank == 0) result = std::move(mine);
  });
  return result;
}

void expect_same_runs(const RunLog& run, const RunLog& expected, double tolerance) {
  ASSERT_EQ(run.lines.size(), expected.lines.size());
  for (const std::string key : {"loss", "kd_loss", "lm_loss", "grad_norm"}) {
    const auto actual = run.numbers(key), right = expected.numbers(key);
    ASSERT_FALSE(right.empty()) << key;
    ASSERT_EQ(actual.size(), right.size()) << key;
    for (size_t i = 0; i < right.size(); ++i)
      expect_close(actual[i], right[i], fmt::format("{} {}", key, i), key == "grad_norm" ? 2 * tolerance : tolerance);
  }
  for (const std::string key : {"eval_loss", "eval_kd_loss", "eval_lm_loss"})
    expect_close(*run.evaluation.find(key), *expected.evaluation.find(key), key, tolerance);
}

// Several texts per row, which do not attend to one another, in another order, with padding at the end.
std::vector<data::Sequence> packed(const std::vector<data::Sequence>& texts, size_t each) {
  std::vector<data::Sequence> rows;
  for (size_t first = 0; first < texts.size(); first += each) {
    data::Sequence row;
    for (size_t i = std::min(first + each, texts.size()); i-- > first;) {
      row.ids.insert(row.ids.end(), texts[i].ids.begin(), texts[i].ids.end());
      row.labels.insert(row.labels.end(), texts[i].labels.begin(), texts[i].labels.end());
      row.pieces.push_back(static_cast<int32_t>(texts[i].ids.size()));
    }
    row.ids.resize(row.ids.size() + 3, 0);
    row.labels.resize(row.ids.size(), data::kIgnoredLabel);
    rows.push_back(std::move(row));
  }
  return rows;
}

class FileDistillation : public ::testing::Test {
 protected:
  FileDistillation() : texts_(random_sequences(8, kVocabularyOfQwen)), teacher_(other_teacher()) {}

  fs::path write(const std::string& name, const TrainerCase& how, int64_t classes = 16) {
    write_files(how, {.folder = folder_ / name, .teacher = teacher_, .classes = classes, .samples = texts_});
    return folder_ / name;
  }

  std::vector<data::Sequence> texts_;
  fs::path teacher_;
  TempFolder folder_;
};

TEST_F(FileDistillation, EveryLayoutWritesTheSame) {
  const train::TeacherFiles alone(write("alone", file_case("one rank", 1)));
  EXPECT_GT(alone.index().shards.size(), 1U);
  for (const TrainerCase& how :
       {file_case("tp 2", 1, [](TrainerCase& c) { c.tp = 2; }), file_case("pp 2", 1, [](TrainerCase& c) { c.pp = 2; }),
        file_case("packed cp 2", 1, [](TrainerCase& c) { c.cp = 2, c.collator.padding = data::Padding::kNone; }),
        file_case("dp 2", 1, [](TrainerCase& c) { c.dp = 2; }),
        file_case("tp 2 cp 2 pp 2", 1, [](TrainerCase& c) { c.tp = c.cp = c.pp = 2; })}) {
    SCOPED_TRACE(how.name);
    const train::TeacherFiles files(write(how.name, how));
    for (const data::Sequence& text : texts_)
      for (const train::TaughtUnit& unit : train::units_of(text)) {
        ASSERT_EQ(files.tokens_of(unit.key), std::ssize(unit.labels));
        const train::TaughtRows expected = alone.rows_of(unit.key), found = files.rows_of(unit.key);
        expect_identical(found.ids, expected.ids, "ids");
        expect_close(found.log_probs, expected.log_probs, "log-probabilities", 1e-5);
        expect_close(found.log_tails, expected.log_tails, "tails", 1e-5);
      }
  }
}

TEST_F(FileDistillation, WithTheWholeVocabularyIsTrainingBesideTheTeacher) {
  const fs::path files = write("whole", file_case("one rank", 1), kVocabularyOfQwen);
  EXPECT_TRUE(train::read_teacher_index(files).is_whole());
  const auto live = [&](const TrainerCase& how) {
    TrainerCase taught = how;
    taught.args.distillation.teacher = "teacher";
    return run_distillation(taught, {golden_folder("qwen3"), teacher_, texts_});
  };
  for (const config::KdLoss loss : {config::KdLoss::kForwardKl, config::KdLoss::kReverseKl, config::KdLoss::kJsd}) {
    const TrainerCase how =
        file_case(std::string(config::choice_name(loss)), 4, [&](TrainerCase& c) { c.args.distillation.loss = loss; });
    expect_same_runs(train_with_files(how, files, texts_), live(how), 1e-5);
  }
}

TEST_F(FileDistillation, EveryLayoutGivesTheNumbersOfOneRank) {
  const fs::path files = write("files", file_case("one rank", 1));
  for (const bool tail : {true, false}) {
    const auto with = [&](const std::string& name, int microbatches, const std::function<void(TrainerCase&)>& change) {
      return file_case(name, microbatches, [&](TrainerCase& c) {
        c.args.distillation.tail = tail;
        change(c);
      });
    };
    const RunLog alone = train_with_files(with("one rank", 4, [](TrainerCase&) {}), files, texts_);
    const auto losses = alone.numbers("kd_loss");
    EXPECT_LT(losses.back(), losses.front());
    for (const TrainerCase& how :
         {with("tp 2", 4, [](TrainerCase& c) { c.tp = 2; }), with("dp 2", 2, [](TrainerCase& c) { c.dp = 2; }),
          with("packed, cp 2", 4, [](TrainerCase& c) { c.cp = 2, c.collator.padding = data::Padding::kNone; }),
          with("cp 2 tp 2", 4, [](TrainerCase& c) { c.cp = c.tp = 2; }),
          with("tp 2 pp 2 dp 2", 2, [](TrainerCase& c) { c.tp = c.pp = c.dp = 2; }),
          with("zero bubble", 4, [](TrainerCase& c) {
            c.pp = 2;
            c.args.pipeline.schedule = layout::ScheduleKind::kZeroBubble;
          })})
      expect_same_runs(train_with_files(how, files, texts_), alone, 2e-5);
  }
}

// Files were written for single texts; the same texts several to a row, in another order, find their rows.
TEST_F(FileDistillation, PackedRowsFindTheirTexts) {
  const fs::path files = write("files", file_case("one rank", 1));
  const auto whole = [](const std::string& name, int rows, const std::function<void(TrainerCase&)>& change) {
    TrainerCase how = file_case(name, 1, change);
    how.args.run.max_steps = 2;
    how.args.batch.micro_batch_size = rows / how.dp;
    return how;
  };
  const RunLog single = train_with_files(whole("single texts", 8, [](TrainerCase&) {}), files, texts_);
  const std::vector<data::Sequence> rows = packed(texts_, 2);
  const auto none = [](TrainerCase& c) { c.collator.padding = data::Padding::kNone; };
  expect_same_runs(train_with_files(whole("packed", 4, none), files, rows), single, 2e-5);
  expect_same_runs(train_with_files(whole("packed, cp 2 tp 2", 4,
                                          [&](TrainerCase& c) {
                                            none(c);
                                            c.cp = c.tp = 2;
                                          }),
                                    files, rows),
                   single, 2e-5);
}

// Every sample gets its own rows, whatever the order.
TEST_F(FileDistillation, FieldsStandBesideTheirLabels) {
  const auto files = std::make_shared<const train::TeacherFiles>(write("files", file_case("one rank", 1)));
  const auto dataset = train::with_teacher_files(dataset_of(texts_), files, 1.5, true);
  for (const int64_t i : {5, 0, 7}) {
    const data::Sequence row = dataset->sample(i).row;
    const auto& ids = std::get<std::vector<int64_t>>(row.fields.at(train::kTeacherIds).numbers);
    const auto& tails = std::get<std::vector<float>>(row.fields.at(train::kTeacherLogTail).numbers);
    ASSERT_EQ(ids.size(), row.ids.size() * 16);
    const train::TaughtUnit unit = train::units_of(row).at(0);
    const train::TaughtRows rows = files->rows_of(unit.key);
    for (size_t n = 0; n < unit.labels.size(); ++n) {
      const auto label = static_cast<size_t>(unit.labels[n]);
      for (size_t k = 0; k < 16; ++k)
        EXPECT_EQ(ids[label * 16 + k], rows.ids[static_cast<int64_t>(n)][static_cast<int64_t>(k)].item<int64_t>());
      EXPECT_EQ(tails[label], rows.log_tails[static_cast<int64_t>(n)][1].item<float>());
    }
  }
}

TEST_F(FileDistillation, FilesOfOtherDataAreRefusedByName) {
  const fs::path folder = write("files", file_case("one rank", 1));
  std::vector<data::Sequence> others = texts_;
  others[2].ids[1] += 1;
  others[6].labels[4] = data::kIgnoredLabel;
  run_trainer_ranks(
      golden_folder("qwen3"), file_case("dp 2", 1, [](TrainerCase& c) { c.dp = 2; }), [&](const TrainerRank& r) {
        const train::TeacherFiles files(folder);
        const auto refused = [&](const std::map<std::string, std::string>& data, const std::string& reason) {
          expect_error<DataError>(
              [&] { train::check_taught(*dataset_of(others), files, data, "training data", r.models.context()); },
              {"lacks 2 of the 8 texts of the training data", reason});
        };
        refused({{"cutoff_len", "64"}}, "cutoff_len is 64, and was 128 when the files were written");
        refused({{"cutoff_len", "128"}}, "the data or the tokenizer must differ");
      });
}

TEST_F(FileDistillation, FilesOfAnotherVocabularyAreRefused) {
  const fs::path folder = write("files", file_case("one rank", 1));
  std::string message;
  run_trainer_ranks(golden_folder("llama"), file_case("one rank", 1), [&](const TrainerRank& r) {
    const auto files = std::make_shared<const train::TeacherFiles>(folder);
    train::TrainerSetup setup = r.setup(train::with_teacher_files(dataset_of(texts_), files, 1.5, true));
    setup.objective = std::make_unique<train::FileDistillationObjective>(
        run::distillation_settings(r.args.distillation), files->index());
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    message = error_of<ConfigError>([&] { trainer.train(); });
  });
  expect_contains(message, "for a vocabulary of 256 ids, and the model that is trained has 512");
}

// An existing folder is kept as it is.
TEST_F(FileDistillation, NothingIsOverwritten) {
  const fs::path folder = write("files", file_case("one rank", 1));
  run_trainer_ranks(golden_folder("qwen3"), file_case("one rank", 1), [&](const TrainerRank& r) {
    const auto teacher = teacher_on(r, teacher_);
    const std::vector<train::EvalData> data{{.dataset = dataset_of(texts_), .collator = r.collator}};
    expect_error<ConfigError>(
        [&] { train::write_teacher_files(data, *teacher, {.folder = folder}, r.models.context()); }, {folder.string()});
  });
  EXPECT_EQ(train::TeacherFiles(folder).index().classes, 16);
}

}  // namespace
}  // namespace megalith::testing
