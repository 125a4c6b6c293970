// Under torchrun nobody but the store survives a restart, so each start keeps a record there, under its number:
//
//   megalith/record/N/began    wall-clock milliseconds at which training began; absent if the settings were refused
//   megalith/record/N/done     progress as JSON, rewritten by rank 0 a few times per second
//   megalith/record/N/failed   wall-clock milliseconds of the first failure that a rank noticed
//
// The wall clock is used because a restart may be on other machines, whose monotonic clocks cannot be compared.
#include "megalith/comm/store/start_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <chrono>
#include <optional>

#include "megalith/base/text.h"

namespace megalith::comm {

namespace {

constexpr const char* kBegan = "began";
constexpr const char* kDone = "done";
constexpr const char* kFailed = "failed";
constexpr int64_t kPauseMs = 250;  // pause between notes

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Asks before it reads: getting a key that does not exist would wait for it.
std::optional<int64_t> time_in(c10d::Store& record, const char* key) {
  return record.check({key}) ? parse_int(record.get_to_str(key)) : std::nullopt;
}

// Converts a wall-clock time to this machine's monotonic clock.
int64_t monotonic_of(int64_t time_ms) { return monotonic_ns() - (now_ms() - time_ms) * 1'000'000; }

}  // namespace

StartRecord::StartRecord(const c10::intrusive_ptr<c10d::Store>& store, int64_t start) : store_(store), start_(start) {}

c10::intrusive_ptr<c10d::Store> StartRecord::record_of(int64_t start) const {
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("megalith/record/{}", start), store_);
}

// The store of a first start has no records; then only the count of the agents can tell.
bool StartRecord::continues(int restarts) const {
  if (start_ == 0) return restarts > 0;
  for (int64_t start = 0; start < start_; ++start)
    if (record_of(start)->check({kBegan})) return true;
  return false;
}

void StartRecord::begin() { record_of(start_)->set(kBegan, std::to_string(now_ms())); }

void StartRecord::note(const Attempt& done) {
  const int64_t now = now_ms();
  if (now - written_ms_ < kPauseMs) return;
  written_ms_ = now;
  const nlohmann::json line{{"first_step", done.first_step},
                            {"last_step", done.last_step},
                            {"step_seconds", done.step_seconds},
                            {"time_ms", now}};
  try {
    record_of(start_)->set(kDone, line.dump());
  } catch (const std::exception&) {
    // Unreachable: the next note says more. The watchdog decides whether the store is gone.
  }
}

void StartRecord::note_failure() noexcept {
  try {
    record_of(start_)->compareSet(kFailed, std::string(), std::to_string(now_ms()));
  } catch (const std::exception&) {
    // The store is gone with its machine: nobody will read the record.
  }
}

// Starts before the first begin() did not train and are skipped.
RankLaunch StartRecord::complete(RankLaunch launch) const {
  for (int64_t start = 0; start < start_; ++start) {
    const auto record = record_of(start);
    Attempt attempt;
    const auto began = time_in(*record, kBegan), failed = time_in(*record, kFailed);
    if (launch.earlier.empty()) {
      if (!began) continue;  // the run had not begun yet
      launch.started_ns = monotonic_of(*began);
    }
    launch.failed_ns = failed ? monotonic_of(*failed) : 0;
    if (record->check({kDone})) {
      const auto done = nlohmann::json::parse(record->get_to_str(kDone));
      attempt.first_step = done.at("first_step").get<int64_t>();
      attempt.last_step = done.at("last_step").get<int64_t>();
      attempt.step_seconds = done.at("step_seconds").get<double>();
      if (failed)
        attempt.detect_seconds = std::max(0.0, static_cast<double>(*failed - done.at("time_ms").get<int64_t>()) / 1e3);
    }
    launch.earlier.push_back(attempt);
  }
  return launch;
}

}  // namespace megalith::comm
