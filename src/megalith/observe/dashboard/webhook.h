// AlertWebhook: sends alerts of runs to an address, while a dashboard runs.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "megalith/observe/dashboard/dashboard.h"
#include "megalith/observe/http/http_client.h"

namespace megalith::observe {

// A thread looks for alerts every few seconds, whether or not a page is open, and posts each that is new:
//
//   {"run":"out","kind":"loss_spike","step":120,"text":"out: the loss jumped to 9.1 at step 120; …"}
//
// `text` is the member that chat services show. An alert that cannot be delivered is tried again at the next look;
// a run never notices. It is sent once for each run, kind and step, so that one that lasts is not repeated.
class AlertWebhook {
 public:
  struct Settings {
    HttpUrl url;
    std::chrono::milliseconds interval = std::chrono::seconds(10);
    // Told of the first delivery that fails, and of the first after one that succeeded.
    std::function<void(const std::string& reason)> failed{};
  };
  // `dashboard` outlives it.
  AlertWebhook(Dashboard& dashboard, Settings settings);
  ~AlertWebhook();
  AlertWebhook(const AlertWebhook&) = delete;
  AlertWebhook& operator=(const AlertWebhook&) = delete;

 private:
  void watch();
  void send_news();

  Dashboard& dashboard_;
  const Settings settings_;
  std::set<std::string> sent_;  // "run/kind/step" of delivered alerts that still hold; the thread's alone
  bool failing_ = false;
  std::mutex mutex_;  // guards stopped_
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace megalith::observe
