// A rank and the store: connections that survive a broken network, one for all groups, the end of a run.
#include "megalith/comm/store_link_internal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include "megalith/comm/store/lasting_store.h"
#include "megalith/comm/store/polling_store.h"
#include "megalith/comm/store/process_settings.h"
#include "tests/support/cuttable_proxy.h"

namespace megalith::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using testing::CuttableProxy;

// A server, a network that can be cut, and stores that reach the one through the other.
class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    prepare_c10d();
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    port_ = server->getPort();
    server_ = server;
    proxy_ = std::make_unique<CuttableProxy>(port_);
  }
  StorePtr connect(milliseconds timeout = seconds(20)) {
    return c10::make_intrusive<LastingStore>("127.0.0.1", proxy_->port(), timeout);
  }
  StorePtr connect_directly(milliseconds timeout = seconds(20)) {
    return c10::make_intrusive<LastingStore>("127.0.0.1", port_, timeout);
  }

  int port_ = 0;
  StorePtr server_;
  std::unique_ptr<CuttableProxy> proxy_;
};

using LastingStoreTest = StoreTest;
using PollingStoreTest = StoreTest;

double seconds_of(const std::function<void()>& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

TEST_F(LastingStoreTest, ARequestOverABrokenConnectionIsMadeAgain) {
  const StorePtr store = connect();
  store->set("color", std::string("blue"));
  for (int i = 0; i < 3; ++i) {
    proxy_->cut();
    EXPECT_EQ(store->get_to_str("color"), "blue");
  }
  proxy_->cut();
  store->set("color", std::string("green"));
  proxy_->cut();
  EXPECT_TRUE(store->check({"color"}));
  EXPECT_EQ(server_->get_to_str("color"), "green");
}

TEST_F(LastingStoreTest, WhatWouldCountTwiceIsNotMadeAgain) {
  const StorePtr store = connect();
  EXPECT_EQ(store->add("n", 1), 1);
  proxy_->cut();
  EXPECT_THROW(store->add("n", 1), c10::DistNetworkError);
  EXPECT_LE(store->add("n", 0), 2);  // the next one connects
  proxy_->cut();
  EXPECT_LE(store->add("n", 0), 2);  // counts nothing: made again
}

TEST_F(LastingStoreTest, AWaitSurvivesACut) {
  const StorePtr store = connect();
  auto waiting = std::async(std::launch::async, [&] { return store->get_to_str("late"); });
  std::this_thread::sleep_for(milliseconds(200));
  proxy_->cut();
  std::this_thread::sleep_for(milliseconds(200));
  server_->set("late", std::string("here"));
  ASSERT_EQ(waiting.wait_for(seconds(10)), std::future_status::ready);
  EXPECT_EQ(waiting.get(), "here");
}

TEST_F(LastingStoreTest, AnOutageIsNotTheEnd) {
  const StorePtr store = connect();
  proxy_->set_outage(true);
  auto back = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(seconds(1));
    proxy_->set_outage(false);
  });
  StorePatience patience;
  bool answered = false;
  for (int i = 0; i < 20 && !answered; ++i) try {
      store->set("color", std::string("blue"));
      answered = true;
    } catch (const std::exception& error) {
      EXPECT_FALSE(patience.is_gone_after(error)) << error.what();
    }
  EXPECT_TRUE(answered);
}

TEST_F(LastingStoreTest, AStoreThatHasEndedOnThisMachineIsGoneAtOnce) {
  const StorePtr store = connect_directly();
  server_.reset();
  const double taken = seconds_of([&] { EXPECT_THROW(store->set("color", std::string("blue")), StoreEnded); });
  EXPECT_LT(taken, 2);
  StorePatience patience;
  EXPECT_TRUE(patience.is_gone_after(StoreEnded("")));
}

TEST(StorePatienceTest, IsExhaustedByTheLimitAndRenewedByAnAnswer) {
  StorePatience patience(milliseconds(1500));
  const std::runtime_error reset("Connection reset by peer");
  EXPECT_FALSE(patience.is_gone_after(reset));
  std::this_thread::sleep_for(milliseconds(800));
  EXPECT_FALSE(patience.is_gone_after(reset));
  patience.answered();
  std::this_thread::sleep_for(milliseconds(800));  // 1.6 s after the first reset
  EXPECT_FALSE(patience.is_gone_after(reset));
  std::this_thread::sleep_for(milliseconds(1600));
  EXPECT_TRUE(patience.is_gone_after(reset));
}

TEST(StorePatienceTest, GivesABrokenNetworkAMinute) { EXPECT_GE(kStorePatience, seconds(60)); }

// Over a connection whose wait blocks, the key that is waited for could not even be set.
TEST_F(PollingStoreTest, AWaitDoesNotHoldTheConnection) {
  const StorePtr shared = connect_directly();
  const auto store = c10::make_intrusive<PollingStore>(shared);
  auto waiting = std::async(std::launch::async, [&] { return store->get_to_str("late"); });
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_LT(seconds_of([&] { store->set("late", std::string("here")); }), 2);
  ASSERT_EQ(waiting.wait_for(seconds(5)), std::future_status::ready);
  EXPECT_EQ(waiting.get(), "here");
}

TEST_F(PollingStoreTest, AWaitHasItsLimitAndNamesTheKey) {
  const auto store = c10::make_intrusive<PollingStore>(connect_directly(milliseconds(300)));
  try {
    store->get("never");
    FAIL() << "did not throw";
  } catch (const c10::DistStoreError& error) {
    EXPECT_NE(std::string(error.what()).find("never"), std::string::npos) << error.what();
  }
}

// A rank's link with its watchdog.
class WatchTest : public StoreTest {
 protected:
  void watch(const StorePtr& store, milliseconds patience = kStorePatience) {
    state_->size = 1;
    state_->timeout = seconds(60);
    link_ = std::make_unique<StoreLink>(store, 0, 1, seconds(60), patience);
    link_->watch(state_, [this](const std::string& reason) { stuck_promise_.set_value(reason); });
  }
  bool over() const {
    try {
      state_->throw_if_over();
      return false;
    } catch (const CommError&) {
      return true;
    }
  }
  double posted_at() { return RankStatus::from_json(server_->get_to_str("megalith/1/status/0")).posted_at; }
  bool within(seconds limit, const std::function<bool()>& holds) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!holds() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(milliseconds(20));
    return holds();
  }

  std::shared_ptr<RankState> state_ = std::make_shared<RankState>();
  std::promise<std::string> stuck_promise_;
  std::future<std::string> stuck_ = stuck_promise_.get_future();
  std::unique_ptr<StoreLink> link_;
};

TEST_F(WatchTest, AnOutageOfTheNetworkEndsNothing) {
  watch(connect());
  ASSERT_TRUE(within(seconds(5), [&] { return server_->check({"megalith/1/status/0"}); }));
  proxy_->set_outage(true);
  std::this_thread::sleep_for(seconds(4));  // eight beats
  const double before = posted_at();
  proxy_->set_outage(false);
  EXPECT_TRUE(within(seconds(15), [&] { return posted_at() > before; })) << "it did not connect again";
  EXPECT_FALSE(over());
  EXPECT_FALSE(link_->failure(milliseconds(0))) << "an outage is not a failure of a rank";
}

TEST_F(WatchTest, AnOutageThatOutlastsThePatienceEndsTheRun) {
  watch(connect(), /*patience=*/milliseconds(1000));
  ASSERT_TRUE(within(seconds(5), [&] { return server_->check({"megalith/1/status/0"}); }));
  proxy_->set_outage(true);
  EXPECT_TRUE(within(seconds(25), [&] { return over(); }));
  ASSERT_EQ(stuck_.wait_for(seconds(10)), std::future_status::ready) << "the rank's thread did not notice";
  EXPECT_NE(stuck_.get().find("the store is gone"), std::string::npos);
}

TEST_F(WatchTest, ALauncherThatHasEndedEndsTheRunAtOnce) {
  watch(connect());
  ASSERT_TRUE(within(seconds(5), [&] { return server_->check({"megalith/1/status/0"}); }));
  proxy_->close_listener();
  proxy_->cut();
  EXPECT_TRUE(within(seconds(10), [&] { return over(); }));  // far less than the store's patience
}

// The rank that serves the store may end before the others have closed their ends.
TEST_F(WatchTest, TheStoreMayEndAfterTheGoodbye) {
  watch(connect());
  ASSERT_TRUE(within(seconds(5), [&] { return server_->check({"megalith/1/status/0"}); }));
  link_->leave(seconds(10), /*serves_store=*/false);
  proxy_->close_listener();
  proxy_->cut();
  EXPECT_EQ(stuck_.wait_for(seconds(5)), std::future_status::timeout) << stuck_.get();
  EXPECT_FALSE(over());
}

TEST_F(WatchTest, AnEndThatHangsIsEndedByTheWatchdog) {
  watch(connect());
  link_->expect_stop(milliseconds(100), "closing the connections of the groups");
  ASSERT_EQ(stuck_.wait_for(seconds(10)), std::future_status::ready);
  EXPECT_EQ(stuck_.get(), "rank 0: closing the connections of the groups is stuck");
}

TEST_F(WatchTest, AnEndInTimeIsLeftAlone) {
  watch(connect());
  link_->expect_stop(seconds(2), "closing the connections of the groups");
  link_->stop();
  EXPECT_EQ(stuck_.wait_for(milliseconds(2500)), std::future_status::timeout);
  EXPECT_FALSE(over());
}

// Sockets that this process holds: of the server and of its clients.
int open_sockets() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    if (std::filesystem::read_symlink(entry, error).string().starts_with("socket:")) ++count;
  return count;
}

TEST_F(StoreTest, AllGroupsOfARankShareOneConnection) {
  StoreLink link(connect_directly(), 0, 1, seconds(60));
  const int before = open_sockets();
  std::vector<StorePtr> stores;
  for (int i = 0; i < 10; ++i) {
    stores.push_back(link.store_for("group " + std::to_string(i)));
    stores.push_back(link.polling_store_for("pair " + std::to_string(i)));
    stores[stores.size() - 2]->set("id", std::to_string(i));
  }
  EXPECT_EQ(open_sockets() - before, 2) << "one connection: its two ends are both here";
  EXPECT_EQ(stores[0]->get_to_str("id"), "0") << "groups have keys of their own";
  EXPECT_EQ(stores[2]->get_to_str("id"), "1");
}

TEST_F(StoreTest, MembersOfAGroupWaitAsLongAsAnOperationMayTake) {
  StoreLink link(connect_directly(milliseconds(200)), 0, 1, /*group_timeout=*/milliseconds(1500));
  const StorePtr store = link.store_for("tp");
  const double waited = seconds_of([&] { EXPECT_THROW(store->get("id"), c10::DistStoreError); });
  EXPECT_GT(waited, 1.4);
  auto late = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(milliseconds(600));
    server_->set("megalith/1/group/tp/id", std::string("unique"));
  });
  EXPECT_EQ(store->get_to_str("id"), "unique");
}

// Counts the requests of one rank.
class CountingStore : public c10d::PrefixStore {
 public:
  explicit CountingStore(StorePtr inner) : c10d::PrefixStore("counted", std::move(inner)) {}
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ++requests;
    c10d::PrefixStore::set(key, value);
  }
  int64_t add(const std::string& key, int64_t value) override {
    ++requests;
    return c10d::PrefixStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    ++requests;
    return c10d::PrefixStore::check(keys);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    ++requests;
    c10d::PrefixStore::wait(keys, timeout);
  }
  std::atomic<int> requests = 0;
};

TEST_F(StoreTest, RanksThatWaitForTheEndAskSeldom) {
  constexpr int kRanks = 4, kLate = 2;
  std::vector<int> requests(kRanks);
  std::vector<double> left_after(kRanks);
  const auto begun = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([&, rank] {
        const auto counting = c10::make_intrusive<CountingStore>(connect_directly());
        StoreLink link(counting, rank, kRanks, seconds(60));
        if (rank == kLate) std::this_thread::sleep_for(milliseconds(1500));
        EXPECT_TRUE(link.meet_at_end(seconds(20)));
        if (rank == 1) std::this_thread::sleep_for(milliseconds(500));  // still shutting down
        link.leave(seconds(20), /*serves_store=*/rank == 0);
        left_after[rank] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
        requests[rank] = counting->requests;
      });
  }
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_LE(requests[rank], 12) << "rank " << rank;
  EXPECT_GE(left_after[0], 1.9) << "the rank that serves the store goes last";
}

TEST_F(StoreTest, AFailureElsewhereEndsTheWaitForTheEnd) {
  StoreLink link(connect_directly(), 0, 2, seconds(60));
  auto failure = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(milliseconds(300));
    report_failure_in(*server_, {1, "rank 1 was killed"});
  });
  bool met = true;
  EXPECT_LT(seconds_of([&] { met = link.meet_at_end(seconds(30)); }), 5);
  EXPECT_FALSE(met);
}

TEST_F(StoreTest, TheWaitForTheEndHasItsLimit) {
  StoreLink link(connect_directly(), 1, 2, seconds(60));
  bool met = true;
  EXPECT_LT(seconds_of([&] { met = link.meet_at_end(milliseconds(400)); }), 3);
  EXPECT_FALSE(met);
}

TEST_F(StoreTest, TheEndOfARunSurvivesACut) {
  StoreLink zero(connect_directly(), 0, 2, seconds(60));
  StoreLink one(connect(), 1, 2, seconds(60));
  auto waiting = std::async(std::launch::async, [&] { return one.meet_at_end(seconds(20)); });
  std::this_thread::sleep_for(milliseconds(300));
  proxy_->cut();
  EXPECT_TRUE(zero.meet_at_end(seconds(20)));
  EXPECT_TRUE(waiting.get());
}

}  // namespace
}  // namespace megalith::comm
