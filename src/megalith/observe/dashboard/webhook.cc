#include "megalith/observe/dashboard/webhook.h"

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"

namespace megalith::observe {

namespace {

using Json = nlohmann::ordered_json;

// A stall has the step at which the run stands, so it is announced once however long it lasts.
std::string key_of(const Dashboard::RunAlert& found) {
  return fmt::format("{}/{}/{}", found.run, found.alert.kind, found.alert.step);
}

std::string message_of(const Dashboard::RunAlert& found) {
  return Json{{"run", found.run},
              {"kind", found.alert.kind},
              {"step", found.alert.step},
              {"text", found.run + ": " + found.alert.text}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

AlertWebhook::AlertWebhook(Dashboard& dashboard, Settings settings)
    : dashboard_(dashboard), settings_(std::move(settings)), thread_([this] { watch(); }) {}

AlertWebhook::~AlertWebhook() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void AlertWebhook::watch() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    lock.unlock();
    send_news();
    lock.lock();
    wake_.wait_for(lock, settings_.interval, [this] { return stopped_; });
  }
}

// Alerts that no longer hold are forgotten, so that they are announced when they come back.
void AlertWebhook::send_news() {
  std::set<std::string> delivered;
  for (const Dashboard::RunAlert& found : dashboard_.alerts()) {
    const std::string key = key_of(found);
    if (sent_.contains(key)) {
      delivered.insert(key);
      continue;
    }
    const std::string problem = post_http(settings_.url, message_of(found));
    if (problem.empty()) delivered.insert(key);
    if (!problem.empty() && !failing_ && settings_.failed) settings_.failed(problem);
    failing_ = !problem.empty();
    if (failing_) break;  // one attempt per look: the others would wait in vain as well
  }
  sent_.insert(delivered.begin(), delivered.end());
  if (!failing_) sent_ = std::move(delivered);
}

}  // namespace megalith::observe
