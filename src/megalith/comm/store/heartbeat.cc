// An anonymous shared mapping is inherited by fork, so launcher and ranks see the same slots without a file, a message
// or a system call per beat: a beat is three stores to memory that the launcher reads when it likes. A rank that is
// stopped or stuck cannot help showing it, because its time stands still.
#include "megalith/comm/store/heartbeat.h"

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>

#include "megalith/base/error.h"

namespace megalith::comm {

namespace {

using FirstWord = std::atomic<bool>;  // lies after the slots; set once a rank has claimed it
static_assert(FirstWord::is_always_lock_free && alignof(FirstWord) <= alignof(HeartbeatSlot));

size_t page_bytes(int ranks) { return static_cast<size_t>(ranks) * sizeof(HeartbeatSlot) + sizeof(FirstWord); }

// Returns the section whose limit applies to a rank in `section`.
Section limiting_section(Section section, const HeartbeatSlot& slot) {
  const bool steps = section == Section::kData || section == Section::kStep || section == Section::kEvaluation;
  return steps && slot.steps_done < slot.warmup_steps ? Section::kSetup : section;
}

// Keeps the time that has passed since the last sign of life, if none was longer. One thread writes, so a plain
// comparison will do.
void keep_longest(HeartbeatSlot& slot, int64_t now_ns) {
  const auto section = static_cast<Section>(slot.section.load());
  std::atomic<int64_t>& longest = slot.longest_ns[static_cast<size_t>(limiting_section(section, slot))];
  if (now_ns - slot.since_ns > longest) longest = now_ns - slot.since_ns;
}

}  // namespace

std::string_view to_string(Section section) {
  switch (section) {
    case Section::kSetup:
      return "the set-up";
    case Section::kData:
      return "loading data";
    case Section::kStep:
      return "a step";
    case Section::kEvaluation:
      return "an evaluation";
    case Section::kCheckpointing:
      return "a save";
    case Section::kOutside:
      break;
  }
  return "no section";
}

// step_ns covers the moment in which a step is no longer the section and not yet counted.
bool has_begun(const HeartbeatSlot& slot) {
  return slot.section == static_cast<int>(Section::kStep) || slot.step_ns > 0 || slot.steps_done > 0;
}

// CLOCK_MONOTONIC counts from the boot of the machine, so times of different processes can be compared.
int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

HeartbeatPage::HeartbeatPage(int ranks, int warmup_steps) : ranks_(ranks), warmup_steps_(warmup_steps) {
  void* memory = ::mmap(nullptr, page_bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check<CommError>(memory != MAP_FAILED, "cannot share memory with the ranks: {}", std::strerror(errno));
  slots_ = static_cast<HeartbeatSlot*>(memory);
  restart();
}

HeartbeatPage::~HeartbeatPage() { ::munmap(slots_, page_bytes(ranks_)); }

HeartbeatSlot& HeartbeatPage::slot(int local_rank) {
  check(local_rank >= 0 && local_rank < ranks_, "slot {} of {}", local_rank, ranks_);
  return slots_[local_rank];
}

bool HeartbeatPage::claim_first_word() { return !reinterpret_cast<FirstWord*>(slots_ + ranks_)->exchange(true); }

// Placement new resets all fields at once; no rank is running then.
void HeartbeatPage::restart() {
  new (slots_ + ranks_) FirstWord(false);
  for (int i = 0; i < ranks_; ++i) {
    auto* slot = new (slots_ + i) HeartbeatSlot;
    slot->warmup_steps = warmup_steps_;
    slot->since_ns = monotonic_ns();
  }
}

// The time comes last: a launcher that reads in between sees the old time, and at worst a rank that looks older.
void Heartbeat::enter(Section section, int64_t step) const {
  if (slot_ == nullptr) return;
  const int64_t now_ns = monotonic_ns();
  keep_longest(*slot_, now_ns);
  const bool leaves_save =
      slot_->section == static_cast<int>(Section::kCheckpointing) && section != Section::kCheckpointing;
  slot_->section = static_cast<int>(section);
  slot_->step = step;
  slot_->since_ns = now_ns;
  if (leaves_save) ++slot_->saves;
}

// steps_done comes last: the launcher takes a nonzero value as a sign that the other fields are set.
void Heartbeat::step_done(int64_t step, double seconds) const {
  if (slot_ == nullptr) return;
  if (slot_->steps_done == 0) slot_->first_step = step;
  slot_->step_ns += static_cast<int64_t>(seconds * 1e9);
  enter(Section::kOutside, step);
  ++slot_->steps_done;
}

}  // namespace megalith::comm
