// Many ranks, one build: threads and processes that want the same indices at the same time.
#include "megalith/data/gpt/index_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "megalith/io/file_lock.h"
#include "tests/data/data_support.h"

namespace megalith::data {
namespace {

using std::chrono::milliseconds;

class IndexCache : public ::testing::Test {
 protected:
  IndexArrays load(const std::function<void()>& while_building, const io::LockWait& wait = {}) {
    const auto build = [&]() -> IndexArrays {
      ++builds_;
      while_building();
      return {IndexArray(std::vector<int32_t>{1, 2, 3}, {3})};
    };
    const auto accept = [](const IndexArrays& arrays) { check<DataError>(arrays[0].rows() == 3, "not three rows"); };
    return load_or_build(key_, {"numbers"}, build, accept, wait);
  }

  // A process that holds the lock until it is killed.
  pid_t start_holder() {
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    const pid_t pid = ::fork();
    if (pid == 0) {
      const auto lock = io::FileLock::try_lock(key_.path("lock"));
      const char byte = lock ? 'y' : 'n';
      if (::write(ready[1], &byte, 1) == 1) ::pause();
      ::_exit(1);
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'y');
    ::close(ready[0]);
    ::close(ready[1]);
    return pid;
  }
  static void end(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }

  TempFolder temp_;
  IndexCacheKey key_{temp_ / "cache", "Test", "train", "{}"};
  std::atomic<int> builds_ = 0;
};

TEST_F(IndexCache, BuiltOnceThenMapped) {
  EXPECT_EQ(load([] {})[0][2], 3);
  EXPECT_EQ(load([] {})[0][2], 3);
  EXPECT_EQ(builds_, 1);
  EXPECT_EQ(file_bytes(key_.path("description.txt")), "{}");
  EXPECT_FALSE(std::filesystem::exists(key_.path("lock")));
}

TEST_F(IndexCache, ThreadsThatComeTogetherBuildOnce) {
  std::atomic<int64_t> sum = 0;
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 8; ++rank)
      ranks.emplace_back([&] { sum += load([] { std::this_thread::sleep_for(milliseconds(50)); })[0][1]; });
  }
  EXPECT_EQ(sum, 16);
  EXPECT_EQ(builds_, 1);
}

TEST_F(IndexCache, ADeadProcessDoesNotHoldOthersUp) {
  end(start_holder());
  EXPECT_TRUE(std::filesystem::exists(key_.path("lock")));
  EXPECT_EQ(load([] {}, {.limit = milliseconds(2000)})[0][0], 1);
  EXPECT_EQ(builds_, 1);
}

TEST_F(IndexCache, ALivingProcessIsWaitedForWithALimit) {
  const pid_t holder = start_holder();
  const std::string text = message_of<DataError>([&] { load([] {}, {.limit = milliseconds(100)}); });
  expect_contains(text, key_.path("lock").string());
  expect_contains(text, fmt::format("process {} on ", holder));
  EXPECT_EQ(builds_, 0);
  end(holder);
}

TEST_F(IndexCache, AWaitEndsWhenTheHolderDies) {
  const pid_t holder = start_holder();
  std::jthread waiting([&] { load([] {}, {.limit = milliseconds(20000)}); });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(builds_, 0);
  end(holder);
  waiting.join();
  EXPECT_EQ(builds_, 1);
}

TEST_F(IndexCache, DamagedFilesAreBuiltAgain) {
  load([] {});
  put_file(key_.path("numbers.npy"), file_bytes(key_.path("numbers.npy")).substr(0, 100));
  EXPECT_EQ(load([] {})[0][2], 3);
  put_file(key_.path("description.txt"), "another");
  EXPECT_EQ(load([] {})[0][2], 3);
  std::filesystem::remove(key_.path("numbers.npy"));
  EXPECT_EQ(load([] {})[0][2], 3);
  EXPECT_EQ(builds_, 4);
}

TEST_F(IndexCache, AFailedBuildLeavesNothingBehind) {
  EXPECT_THROW(load([] { throw DataError("no"); }), DataError);
  EXPECT_TRUE(std::filesystem::is_empty(key_.folder));
  EXPECT_EQ(load([] {})[0][2], 3);
}

TEST_F(IndexCache, AFolderThatCannotBeMadeIsNamed) {
  put_file(temp_ / "file", "");
  key_.folder = temp_ / "file/cache";
  expect_contains(message_of<DataError>([&] { load([] {}); }), "file/cache cannot be made");
}

}  // namespace
}  // namespace megalith::data
