// Keeps a map of running operations by record number (so the first entry is the oldest), and per group the newest
// sequence number, a history of digests and a queue of operations that the host has left to the device. An operation on
// a device ends when its completion mark is reached; that is checked lazily, whenever somebody asks for the status.
#include "megalith/comm/op/op_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "megalith/base/error.h"

namespace megalith::comm {

namespace {

constexpr size_t kKept = 64;  // finished operations to remember

double seconds(OpRecorder::Clock::duration span) { return std::chrono::duration<double>(span).count(); }

}  // namespace

// The form in which a status is posted to the store; both sides are of the same build.
std::string RankStatus::to_json() const {
  nlohmann::json excerpts = nlohmann::json::object();
  for (const auto& [id, excerpt] : operations) excerpts[id] = {excerpt.last, excerpt.digests};
  return nlohmann::json{
      {"rank", rank}, {"posted_at", posted_at}, {"last", last}, {"begun", begun}, {"operations", std::move(excerpts)}}
      .dump();
}

RankStatus RankStatus::from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  check(json.is_object(), "a rank's status in the store is not JSON: {}", text);
  RankStatus status{json.at("rank"), json.at("posted_at"), json.at("last"), json.at("begun")};
  for (const auto& [id, excerpt] : json.at("operations").items())
    status.operations[id] = {excerpt.at(0), excerpt.at(1)};
  return status;
}

uint64_t OpRecorder::begin(const GroupInfo& group, const OpInfo& op) {
  std::lock_guard lock(mutex_);
  const uint64_t record = next_record_++;
  running_.emplace(record, InFlight{.group = &group, .op = op, .begun = Clock::now()});
  GroupRecord& known = groups_[&group];
  Count& count = known.counts[static_cast<size_t>(op.kind)];
  ++count.operations;
  count.bytes += op.bytes;
  if (is_point_to_point(op.kind)) return record;
  // Only collectives have a number that members compare: all of them have them in the same order.
  known.begun = op.sequence;
  known.history.add(op);
  return record;
}

void OpRecorder::started(uint64_t record, const std::shared_ptr<PendingOp>& pending) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(record);
  if (it == running_.end()) return;
  it->second.started = true;
  it->second.pending = pending;
  it->second.arrival = pending->arrival();
}

void OpRecorder::end(uint64_t record) {
  std::lock_guard lock(mutex_);
  if (const auto it = running_.find(record); it != running_.end()) finish(it);
}

// Records queue up in the order of the host's waits, which is the order on the device.
void OpRecorder::end_when_done(uint64_t record, std::shared_ptr<Completion> completion) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(record);
  if (it == running_.end()) return;
  it->second.completion = std::move(completion);
  std::deque<uint64_t>& on_device = groups_[it->second.group].on_device;
  on_device.push_back(record);
  finish_done(on_device);
}

void OpRecorder::set_trace(TraceRecorder* trace) {
  std::lock_guard lock(mutex_);
  trace_ = trace;
}

// The trace has its own clock, so the start is its present minus the measured duration. OpMarks adds what runs on a
// device.
void OpRecorder::add_to_trace(const InFlight& what) const {
  if (trace_ == nullptr || !trace_->timeline_on() || (what.arrival && trace_->device_clock() != nullptr)) return;
  const int64_t end_ns = trace_->now_ns();
  const int64_t took_ns = (Clock::now() - what.begun) / std::chrono::nanoseconds(1);
  trace_->add({{.name = to_string(what.op.kind),
                .lane = TraceLane::kCommunication,
                .purpose = what.op.label,
                .group = what.group->name.c_str()},
               end_ns - took_ns,
               end_ns});
}

void OpRecorder::finish(std::map<uint64_t, InFlight>::iterator running) {
  const InFlight& what = running->second;
  add_to_trace(what);
  finished_.push_back({what.op.kind, what.op.label, what.op.sequence, what.group, what.begun, Clock::now()});
  if (finished_.size() > kKept) finished_.pop_front();
  running_.erase(running);
}

// Operations of a group finish in order on the device, so the first unfinished one ends the search.
void OpRecorder::finish_done(std::deque<uint64_t>& on_device) {
  while (!on_device.empty()) {
    const auto oldest = running_.find(on_device.front());
    if (oldest != running_.end()) {
      if (!oldest->second.completion->done()) return;
      finish(oldest);
    }
    on_device.pop_front();
  }
}

void OpRecorder::finish_all_done() {
  for (auto& [group, known] : groups_) finish_done(known.on_device);
}

// 0 for an operation that has ended meanwhile.
std::chrono::milliseconds OpRecorder::age(uint64_t record) const {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(record);
  if (it == running_.end()) return std::chrono::milliseconds(0);
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - it->second.begun);
}

// Called by the watchdog at every beat, so it is also the regular occasion to notice what the device has finished.
RankStatus OpRecorder::status(int rank) {
  std::lock_guard lock(mutex_);
  finish_all_done();
  RankStatus status;
  status.rank = rank;
  status.posted_at = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (const auto& [group, known] : groups_) {
    if (known.begun == 0) continue;
    status.begun[group->id] = known.begun;
    status.operations[group->id] = known.history.excerpt(OpHistory::kPosted);
  }
  note_who_is_behind(status);
  status.last = last_words();
  return status;
}

// Corrects `begun`: a rank whose device still computes has not arrived, however far ahead its host is. Neither has it
// if the host has yet to hand over the operation, which may be impossible: a stuck device stops accepting work after a
// while.
void OpRecorder::note_who_is_behind(RankStatus& status) const {
  std::set<const GroupInfo*> behind;
  bool device_computes = false;
  for (const auto& [record, running] : running_) {
    const bool reached = running.reached() && (running.started || !device_computes);
    if (running.started && !reached) device_computes = true;
    if (reached || is_point_to_point(running.op.kind) || !behind.insert(running.group).second) continue;
    status.begun[running.group->id] = running.op.sequence - 1;
  }
}

// Describes the oldest running operation, since the ones after it wait for it; otherwise the last finished one.
std::string OpRecorder::last_words() const {
  const auto now = Clock::now();
  if (!running_.empty()) {
    const InFlight& oldest = running_.begin()->second;
    return fmt::format("{} {} of {} for {:.1f} s", oldest.reached() ? "in" : "computing on the device, before",
                       oldest.op.describe(), oldest.group->name, seconds(now - oldest.begun));
  }
  if (finished_.empty()) return "started, no operation yet";
  const Finished& last = finished_.back();
  return fmt::format("finished {}{} #{} of {} {:.1f} s ago", to_string(last.kind),
                     *last.label != '\0' ? fmt::format(" '{}'", last.label) : "", last.sequence, last.group->name,
                     seconds(now - last.ended));
}

// Groups with transfers only are left out: there is no common order to compare.
std::vector<const GroupInfo*> OpRecorder::groups() const {
  std::lock_guard lock(mutex_);
  std::vector<const GroupInfo*> list;
  for (const auto& [group, known] : groups_)
    if (known.begun > 0) list.push_back(group);
  return list;
}

OpExcerpt OpRecorder::operations(const GroupInfo& group) const {
  std::lock_guard lock(mutex_);
  const auto known = groups_.find(&group);
  return known == groups_.end() ? OpExcerpt{} : known->second.history.excerpt(OpHistory::kKept);
}

std::optional<OpInfo> OpRecorder::operation(const GroupInfo& group, uint64_t sequence) const {
  std::lock_guard lock(mutex_);
  const auto known = groups_.find(&group);
  const OpInfo* const found = known == groups_.end() ? nullptr : known->second.history.find(sequence);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

std::vector<OpRecorder::InFlight> OpRecorder::in_flight() {
  std::lock_guard lock(mutex_);
  finish_all_done();
  std::vector<InFlight> list;
  for (const auto& [record, running] : running_) list.push_back(running);
  return list;
}

std::vector<OpTotal> OpRecorder::totals() const {
  std::lock_guard lock(mutex_);
  std::vector<OpTotal> all;
  for (const auto& [group, known] : groups_)
    for (size_t kind = 0; kind < kOpKinds; ++kind)
      if (const Count& count = known.counts[kind]; count.operations > 0)
        all.push_back({group->name, static_cast<OpKind>(kind), count.operations, count.bytes});
  std::ranges::stable_sort(all, {}, [](const OpTotal& total) { return std::pair(total.group, total.kind); });
  return all;
}

// Formatted only here: recording must cost no more than a lock.
std::vector<std::string> OpRecorder::recent() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  const auto now = Clock::now();
  for (const Finished& op : finished_)
    lines.push_back(fmt::format("{:.1f} s ago  {} '{}' #{} of {}: {:.1f} ms", seconds(now - op.ended),
                                to_string(op.kind), op.label, op.sequence, op.group->name,
                                1e3 * seconds(op.ended - op.begun)));
  return lines;
}

}  // namespace megalith::comm
