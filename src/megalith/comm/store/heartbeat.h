// Signs of life: what each rank of a machine is doing, and since when, in memory that ranks and launcher share. The
// launcher sees a rank that is stopped, stuck or gone without asking it.
//
//   HeartbeatPage page(8);                                // launcher, before it forks
//   Heartbeat beat(page.slot(3));                         // rank 3
//   beat.enter(Section::kStep, /*step=*/120);             // launcher: page.slot(3).since_ns tells how long ago
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

namespace megalith::comm {

// The phase of a run that a rank is in.
enum class Section : int {
  kSetup,          // from the start to the first step
  kData,           // waiting for the data of a step
  kStep,           // forward, backward, update
  kEvaluation,     // each part of an evaluation
  kCheckpointing,  // saving
  kOutside,        // between those, and at the end
};
constexpr size_t kSections = 6;
std::string_view to_string(Section section);  // "the set-up", "loading data", "a step", …

// The state that a rank publishes. Lock-free; written by one thread of the rank.
struct HeartbeatSlot {
  std::atomic<int> section{static_cast<int>(Section::kSetup)};
  std::atomic<int64_t> since_ns{0};    // monotonic time at which it entered the section or last beat in it
  std::atomic<int64_t> step{0};        // the last completed step
  std::atomic<int64_t> steps_done{0};  // completed since the start
  std::atomic<int64_t> first_step{0};  // the first completed step
  std::atomic<int64_t> step_ns{0};     // time of all completed steps
  std::atomic<int64_t> saves{0};       // times that it has left kCheckpointing
  // The longest time without a sign of life in each section. The first `warmup_steps` steps, with their data and
  // evaluations, count as set-up: they share its limit.
  std::array<std::atomic<int64_t>, kSections> longest_ns{};
  int warmup_steps = 0;  // constant while ranks run
};
static_assert(std::atomic<int64_t>::is_always_lock_free);

// Returns whether the first step of this start has begun. Before that a rank has nothing that is worth saving.
bool has_begun(const HeartbeatSlot& slot);

// Returns a monotonic time that all processes of the machine share.
int64_t monotonic_ns();

// Slots in shared memory. Created before the ranks are forked; freed with the last process that maps it.
class HeartbeatPage {
 public:
  // Maps the memory, with all slots in set-up. Throws CommError when the kernel refuses.
  explicit HeartbeatPage(int ranks, int warmup_steps = 0);
  ~HeartbeatPage();
  HeartbeatPage(const HeartbeatPage&) = delete;
  HeartbeatPage& operator=(const HeartbeatPage&) = delete;

  // The number of slots: ranks of this machine.
  int size() const { return ranks_; }
  // Throws InternalError for a rank that is not of this machine.
  HeartbeatSlot& slot(int local_rank);
  // Returns whether no other rank has claimed it before in this start. It is for a mistake that each of them finds
  // while it connects: one tells it.
  bool claim_first_word();
  // Puts all slots back to set-up, from now.
  void restart();

 private:
  const int ranks_, warmup_steps_;
  HeartbeatSlot* slots_ = nullptr;
};

// Writes a rank's slot. A default-constructed one writes nowhere. Copies write to the same slot, which must outlive
// them.
class Heartbeat {
 public:
  Heartbeat() = default;
  // Writes to `slot`, which belongs to this rank alone.
  explicit Heartbeat(HeartbeatSlot& slot) : slot_(&slot) {}

  // Enters a section, or signals progress in it. `step` is the last completed one.
  void enter(Section section, int64_t step) const;
  // Records a step that took `seconds`.
  void step_done(int64_t step, double seconds) const;

  // Returns the slot, for readers; nullptr if this writes nowhere.
  const HeartbeatSlot* slot() const { return slot_; }

 private:
  HeartbeatSlot* slot_ = nullptr;
};

}  // namespace megalith::comm
