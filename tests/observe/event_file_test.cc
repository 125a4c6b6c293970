#include "megalith/observe/event_file.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/observe/decoded_events.h"
#include "tests/observe/some_run.h"
#include "tests/support/expect.h"
#include "tests/support/subprocess.h"

namespace megalith::observe {
namespace {

using testing::TempFolder;

TEST(DecodedEvents, KnowTheChecksum) { EXPECT_EQ(slow_crc32c("123456789"), 0xe3069283U); }  // RFC 3720, B.4

TEST(EventFile, ScalarsAndTexts) {
  const TempFolder folder;
  EventFile file(folder / "tb", {.wall_time = 1700000000.5, .host = "machine"});
  EXPECT_TRUE(file.path().filename().string().starts_with("events.out.tfevents.1700000000.machine."));
  file.add_scalar("train/loss", 2.5, 300, 1700000001.25);
  file.add_scalar("nan", std::nan(""), 0, 1);
  file.add_text("args", std::string(300, 'x'), 0, 2);
  const auto records = records_of(text_of_file(file.path()));
  ASSERT_EQ(records.size(), 4U);

  const DecodedMessage version(records[0]);
  EXPECT_EQ(version.as_double(1), 1700000000.5);
  EXPECT_EQ(version.bytes.at(3), "brain.Event:2");

  const DecodedMessage scalar(records[1]);
  EXPECT_EQ(scalar.as_double(1), 1700000001.25);
  EXPECT_EQ(scalar.numbers.at(2), 300U);
  EXPECT_EQ(scalar.message(5).message(1).bytes.at(1), "train/loss");
  EXPECT_EQ(scalar.message(5).message(1).as_float(2), 2.5F);
  EXPECT_TRUE(std::isnan(DecodedMessage(records[2]).message(5).message(1).as_float(2)));

  const DecodedMessage text = DecodedMessage(records[3]).message(5).message(1);
  EXPECT_EQ(text.bytes.at(1), "args");
  EXPECT_EQ(text.message(8).numbers.at(1), 7U) << "DT_STRING";
  EXPECT_EQ(text.message(8).message(2).message(2).numbers.at(1), 1U) << "of shape [1]";
  EXPECT_EQ(text.message(8).bytes.at(8), std::string(300, 'x'));
  EXPECT_EQ(text.message(9).message(1).bytes.at(1), "text");
}

TEST(EventFile, SecondFileOfASecondHasItsOwnName) {
  const TempFolder folder;
  const EventFile a(folder.path(), {.wall_time = 5, .host = "h"}), b(folder.path(), {.wall_time = 5, .host = "h"});
  EXPECT_NE(a.path(), b.path());
}

TEST(EventFile, PurgeTellsFromWhichStep) {
  const TempFolder folder;
  const EventFile file(folder.path(), {.wall_time = 5, .purge_step = 21});
  const auto records = records_of(text_of_file(file.path()));
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(DecodedMessage(records[1]).numbers.at(2), 21U);
  EXPECT_EQ(DecodedMessage(records[1]).message(7).numbers.at(1), 1U) << "SessionLog.START";
}

TEST(EventFile, NamesTheFolderItCannotMake) {
  const TempFolder folder;
  io::write_text_file(folder / "file", "");
  testing::expect_error<DataError>([&] { EventFile(folder / "file"); },
                                   {"make the folder", (folder / "file").string()});
}

// TensorBoard itself reads the file; only where Python has it.
TEST(EventFile, OpensInTensorboard) {
  const char* python = std::getenv("MEGALITH_PYTHON");
  if (!python || *python == 0) GTEST_SKIP() << "MEGALITH_PYTHON does not name a Python with tensorboard";
  if (testing::run_process({python, "-c", "import tensorboard"}).exit_code != 0)
    GTEST_SKIP() << "the Python of MEGALITH_PYTHON has no tensorboard";
  const TempFolder folder;
  {
    EventFile first(folder.path(), {.wall_time = 100});
    first.add_text("args", "    a: 1\n", 0, 100);
    for (int step = 1; step <= 5; ++step) first.add_scalar("train/loss", 10.0 - step, step, 100 + step);
    EventFile second(folder.path(), {.wall_time = 200, .purge_step = 4});
    second.add_scalar("train/loss", 0.5, 4, 204);
  }
  const std::string script =
      "import sys\n"
      "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
      "a = EventAccumulator(sys.argv[1]).Reload()\n"
      "points = [(e.step, e.value) for e in a.Scalars('train/loss')]\n"
      "assert points == [(1, 9.0), (2, 8.0), (3, 7.0), (4, 0.5)], points\n"
      "text = a.Tensors('args')[0].tensor_proto.string_val[0]\n"
      "assert text == b'    a: 1\\n', text\n"
      "assert a.PluginTagToContent('text').keys() == {'args'}\n";
  const auto run = testing::run_process({python, "-c", script, folder.path().string()}, {}, std::chrono::seconds(100));
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

}  // namespace
}  // namespace megalith::observe
