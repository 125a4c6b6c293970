// Saving on rank threads: whatever the layout, the files of a model are the same bytes; a failure on one rank is an
// error on all of them, and leaves nothing behind.
#include "megalith/checkpoint/saver.h"

#include <gtest/gtest.h>

#include "megalith/checkpoint/copy.h"
#include "megalith/checkpoint/pieces.h"
#include "megalith/checkpoint/run_folder.h"
#include "megalith/checkpoint/state_files.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/hf/safetensors_file.h"
#include "tests/checkpoint/checkpoint_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"
#include "tests/support/temp_folder.h"

namespace megalith::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using testing::expect_identical;
using testing::names_in;
using testing::small_request;
using testing::TempFolder;

void run_layout(int world, int tp, const std::function<void(const parallel::ParallelContext&)>& body) {
  testing::run_ranks(world, [&](const testing::Rank& rank) {
    const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = world, .tp = tp}));
    body(context);
  });
}

// Whatever files the tensors lie in.
void expect_tensors(const fs::path& folder, int world, double add = 0) {
  const Manifest manifest = read_manifest(folder);
  EXPECT_TRUE(problems_of_content(folder, manifest).empty());
  EXPECT_EQ(manifest.holds, (std::vector<std::string>{"model", "rng"}));
  const StateFiles model(folder, manifest, "model"), rng(folder, manifest, "rng");
  const at::Tensor t = at::empty({3, 2});
  model.read({"t", {8, 6}, {4, 3}, t, 0});
  expect_identical(t, (at::arange(48, at::kFloat).view({8, 6}) + add).slice(0, 4, 7).slice(1, 3, 5).contiguous(), "t");
  const at::Tensor norm = at::empty({5});
  model.read({"norm", {5}, {0}, norm, 0});
  expect_identical(norm, at::ones({5}) + add, "norm");
  for (int r = 0; r < world; ++r) EXPECT_EQ(rng.bytes(fmt::format("rank-{}", r)), fmt::format("state of rank {}", r));
}

void expect_content(const fs::path& folder, int world, double add = 0) {
  EXPECT_EQ(names_in(folder),
            (std::vector<std::string>{"manifest.json", "model.safetensors", "notes.txt", "rng.safetensors"}));
  EXPECT_EQ(read_manifest(folder).version, 1);
  expect_tensors(folder, world, add);
}

TEST(Saver, EveryLayoutWritesTheSameFiles) {
  const TempFolder run;
  for (const auto& [world, tp] : {std::pair{1, 1}, {2, 2}, {3, 1}, {4, 2}, {6, 3}}) {
    SCOPED_TRACE(fmt::format("{} ranks, tp {}", world, tp));
    const fs::path folder = run / folder_name(world * 10 + tp);
    run_layout(world, tp, [&](const auto& context) {
      const SaveReport report = Saver(context).save(small_request(context, folder));
      EXPECT_EQ(report.folder, folder);
      if (context.rank() == 0) {
        EXPECT_EQ(report.bytes, read_manifest(folder).total_bytes());
      }
    });
    expect_content(folder, world);
    EXPECT_EQ(latest_checkpoint(run.path()), folder);
  }
}

TEST(Saver, InTheBackgroundWhatWasThereAtTheStart) {
  const TempFolder run;
  run_layout(4, 2, [&](const auto& context) {
    Saver saver(context);
    for (const int64_t step : {1, 2}) {
      SaveRequest request = small_request(context, run / folder_name(step), step, static_cast<double>(step));
      const at::Tensor changed = request.tensors[0].held[0].data;
      saver.start(request);
      saver.finish_copy();
      changed.fill_(-1);  // training continues
      EXPECT_TRUE(saver.busy());
      std::optional<SaveReport> report;
      while (!report) report = saver.poll();
      EXPECT_FALSE(saver.busy());
      EXPECT_EQ(report->step, step);
      EXPECT_LE(report->stalled_seconds, report->total_seconds);
    }
    saver.start(small_request(context, run / folder_name(3), 3, 3));
    EXPECT_EQ(saver.wait().step, 3);
  });
  for (const int64_t step : {1, 2, 3}) expect_content(run / folder_name(step), 4, static_cast<double>(step));
}

TEST(Saver, ReplacesACheckpointOfTheSameStep) {
  const TempFolder run;
  testing::save_small(run / "checkpoint-1", 1, 5);
  testing::save_small(run / "checkpoint-1", 1, 7);
  expect_content(run / "checkpoint-1", 2, 7);
}

TEST(Saver, GivenUpLeavesNothing) {
  const TempFolder run;
  testing::save_small(run / "checkpoint-1", 1);
  run_layout(2, 1, [&](const auto& context) {
    Saver saver(context);
    saver.start(small_request(context, run / "checkpoint-2", 2));
    context.world().world().barrier("all have started");
  });
  EXPECT_EQ(names_in(run.path()), (std::vector<std::string>{"checkpoint-1", "latest"}));
  EXPECT_EQ(latest_checkpoint(run.path()), run / "checkpoint-1");
}

// A failure of one rank is everybody's, and what was saved before is still the newest.
TEST(Saver, AFailureIsAnErrorOnAllRanks) {
  const TempFolder run;
  testing::save_small(run / "checkpoint-1", 1);
  for (const auto& [background, per_writer] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}})
    run_layout(2, 2, [&, background = background, per_writer = per_writer](const auto& context) {
      Saver saver(context);
      SaveRequest request = small_request(context, run / "checkpoint-2", 2, 0, per_writer);
      if (context.rank() == 1) request.tensors[0].held[0].offset = {0, 5};  // does not fit
      expect_error<DataError>(
          [&] {
            if (!background) {
              saver.save(request);
            } else {
              saver.start(request);
              saver.wait();
            }
          },
          {"checkpoint-2 could not be saved", "rank 1", "tensor t"});
      EXPECT_FALSE(saver.busy());
    });
  run_layout(2, 2, [&](const auto& context) {
    SaveRequest request = small_request(context, run / "checkpoint-2", 2);
    request.other_files = [](const fs::path&) { throw DataError("no space left"); };
    expect_error<DataError>([&] { Saver(context).save(request); },
                            {"checkpoint-2 could not be saved", "no space left"});
  });
  EXPECT_EQ(names_in(run.path()), (std::vector<std::string>{"checkpoint-1", "latest"}));
  EXPECT_EQ(latest_checkpoint(run.path()), run / "checkpoint-1");
}

TEST(Saver, PartsThatNobodyOrTwoRanksWriteAreFound) {
  const TempFolder run;
  for (const bool per_writer : {false, true})
    run_layout(2, 2, [&](const auto& context) {
      SaveRequest request = small_request(context, run / "checkpoint-1", 1, 0, per_writer);
      request.tensors[0].held[1].replica = context.rank() == 0 ? 1 : 2;
      expect_error<InternalError>([&] { Saver(context).save(request); }, {"0 elements of norm", "it has 5"});
      request = small_request(context, run / "checkpoint-1", 1, 0, per_writer);
      request.tensors[0].held[1].replica = 0;
      expect_error<InternalError>([&] { Saver(context).save(request); }, {"10 elements of norm", "it has 5"});
      request = small_request(context, run / "checkpoint-1", 1, 0, per_writer);
      request.tensors[0].held[0].offset = {0, 0};  // on both ranks: the other half is missing
      expect_error<InternalError>([&] { Saver(context).save(request); }, {"elements of t were written twice"});
    });
  EXPECT_TRUE(names_in(run.path()).empty());
}

// Two ranks split the tensor's columns; each writes its half as one run, and one of them the norm.
TEST(SaverPerWriter, RanksWriteFilesOfTheirOwn) {
  const TempFolder run;
  for (const bool background : {false, true}) {
    const fs::path folder = run / folder_name(background ? 2 : 1);
    run_layout(2, 2, [&](const auto& context) {
      Saver saver(context);
      SaveRequest request = small_request(context, folder, background ? 2 : 1, 0, /*per_writer=*/true);
      if (!background) return static_cast<void>(saver.save(request));
      const at::Tensor changed = request.tensors[0].held[0].data;
      saver.start(request);
      saver.finish_copy();
      changed.fill_(-1);
      saver.wait();
    });
    EXPECT_EQ(names_in(folder),
              (std::vector<std::string>{"manifest.json", "model-rank-00000.safetensors", "model-rank-00001.safetensors",
                                        "model.pieces.json", "notes.txt", "rng.safetensors"}));
    EXPECT_EQ(read_manifest(folder).version, kVersionWithPieces);
    const hf::SafetensorsFile file(folder / "model-rank-00001.safetensors");
    ASSERT_NE(file.find("t@8x6+0x3"), nullptr);
    EXPECT_EQ(file.find("t@8x6+0x3")->shape, (std::vector<int64_t>{8, 3}));
    expect_tensors(folder, 2);
  }
}

TEST(SaverPerWriter, EveryLayoutIsReadAlike) {
  const TempFolder run;
  for (const auto& [world, tp] : {std::pair{1, 1}, {3, 1}, {4, 2}, {6, 3}, {6, 6}}) {
    SCOPED_TRACE(fmt::format("{} ranks, tp {}", world, tp));
    const fs::path folder = run / folder_name(world * 10 + tp), joined = run / fmt::format("joined-{}-{}", world, tp);
    run_layout(world, tp, [&](const auto& context) {
      Saver(context).save(small_request(context, folder, 1, 0, /*per_writer=*/true));
    });
    expect_tensors(folder, world);
    copy_checkpoint(folder, joined, {});
    expect_content(joined, world);
  }
}

TEST(SaverPerWriter, AFileThatIsMissingOrChangedIsFound) {
  const TempFolder run;
  const fs::path folder = run / "checkpoint-1";
  run_layout(2, 2, [&](const auto& context) { Saver(context).save(small_request(context, folder, 1, 0, true)); });
  Manifest manifest = read_manifest(folder);
  std::erase_if(manifest.files, [](const FileRecord& file) { return file.name == "model-rank-00001.safetensors"; });
  const StateFiles files(folder, manifest, "model", /*reader=*/1);
  EXPECT_EQ(files.tensors().size(), 2U);
  expect_error<DataError>(
      [&] {
        files.read({"t", {8, 6}, {0, 2}, at::empty({8, 2}), 0});
      },
      {"checkpoint-1", "holds only 8 of the 16 elements", "tensor t"});
  const fs::path changed = folder / "model-rank-00001.safetensors";
  testing::flip_byte(changed, static_cast<int64_t>(fs::file_size(changed)) - 4);
  const auto problems = problems_of_content(folder, read_manifest(folder));
  ASSERT_EQ(problems.size(), 1U);
  testing::expect_contains(problems[0], "model-rank-00001.safetensors");
}

TEST(PieceName, IsReadBack) {
  const PieceName name{"optimizer.exp_avg.a.weight", {4096, 14336}, {0, 1792}};
  EXPECT_EQ(name.text(), "optimizer.exp_avg.a.weight@4096x14336+0x1792");
  EXPECT_EQ(PieceName::parse(name.text()), name);
  EXPECT_EQ(PieceName::parse("scalar@+"), (PieceName{"scalar", {}, {}}));
  EXPECT_EQ(PieceName::parse("optimizer.exp_avg.a.weight"), std::nullopt);
  for (const char* bad : {"a@", "a@3", "a@3+1x2", "a@x+", "a@-3+0", "a@3+b"})
    expect_error<DataError>([&] { PieceName::parse(bad); }, {bad, "NAME@4096x14336+0x1792"});
}

TEST(StateFiles, SayWhatIsMissing) {
  const TempFolder run;
  testing::save_small(run / "checkpoint-1");
  const Manifest manifest = read_manifest(run / "checkpoint-1");
  expect_error<DataError>([&] { StateFiles(run / "checkpoint-1", manifest, "optimizer"); },
                          {"checkpoint-1", "optimizer", "saved without"});
  const StateFiles model(run / "checkpoint-1", manifest, "model");
  expect_error<DataError>([&] { model.read({"other", {1}, {0}, at::empty({1}), 0}); }, {"checkpoint-1", "other"});
}

}  // namespace
}  // namespace megalith::checkpoint
