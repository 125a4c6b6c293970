// Signs of life: what each rank of a machine is doing and since when, in memory that ranks and launcher share. The
// launcher sees a rank that is stopped, stuck or gone without asking it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

namespace megalith::comm {

// Where a rank is in its run.
enum class Section : int {
  kSetup,          // from the start to the first step
  kData,           // waits for the data of a step
  kStep,           // forward, backward, update
  kEvaluation,     //
  kCheckpointing,  // a save point
  kOutside,        // between those, and the end
};
std::string_view to_string(Section section);  // "set-up", "loading data", "a step", …

// What a rank says of itself. Lock-free; written by one thread of the rank.
struct HeartbeatSlot {
  std::atomic<int> section{static_cast<int>(Section::kSetup)};
  std::atomic<int64_t> since_ns{0};    // monotonic clock, when it entered the section or last beat in it
  std::atomic<int64_t> step{0};        // the last step that was done
  std::atomic<int64_t> steps_done{0};  // since the start
  std::atomic<int64_t> first_step{0};  // the first that was done
  std::atomic<int64_t> step_ns{0};     // what they took, together
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t monotonic_ns();

// Slots in shared memory. Made before the ranks are forked; goes with the last process that has it.
class HeartbeatPage {
 public:
  explicit HeartbeatPage(int ranks);
  ~HeartbeatPage();
  HeartbeatPage(const HeartbeatPage&) = delete;
  HeartbeatPage& operator=(const HeartbeatPage&) = delete;

  int size() const { return ranks_; }
  HeartbeatSlot& slot(int local_rank);
  // All in the set-up, from now.
  void restart();

 private:
  const int ranks_;
  HeartbeatSlot* slots_ = nullptr;
};

// A rank's pen. The empty one writes nowhere. Copies write to the same slot, which outlives them.
class Heartbeat {
 public:
  Heartbeat() = default;
  explicit Heartbeat(HeartbeatSlot& slot) : slot_(&slot) {}

  // Enters a section, or shows that it goes on there. `step`: the last that was done.
  void enter(Section section, int64_t step) const;
  // A step is through, after so many seconds.
  void step_done(int64_t step, double seconds) const;

 private:
  HeartbeatSlot* slot_ = nullptr;
};

}  // namespace megalith::comm
