// Digests form a chain: digest(n) = f(digest(n - 1), operation n). Members whose digests agree at one number have
// agreed on everything before it, so comparing a few recent digests covers the whole run. Where they differ, the first
// difference is exact only if the digests one number earlier are known and equal.
#include "megalith/comm/op/op_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "megalith/base/text.h"

namespace megalith::comm {

namespace {

// Mixes everything that members must agree on (OpInfo::signature, but the number of elements instead of the shape) into
// a number. Formats nothing, since every operation passes through here.
uint32_t digest_of(const OpInfo& op, uint32_t before) {
  uint64_t mixed = before;
  const auto mix = [&](uint64_t value) {
    mixed = (mixed ^ value) * 0x9e3779b97f4a7c15ULL;
    mixed ^= mixed >> 32;
  };
  mix(static_cast<uint64_t>(op.kind));
  mix(static_cast<uint64_t>(op.dtype));
  if (op.kind != OpKind::kAllToAll) {
    uint64_t elements = 1;
    for (const int64_t size : op.sizes) elements *= static_cast<uint64_t>(size);
    mix(elements);
  }
  if (op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduceScatter) mix(static_cast<uint64_t>(op.reduce));
  if (op.kind == OpKind::kBroadcast) mix(static_cast<uint64_t>(op.peer));
  return static_cast<uint32_t>(mixed);
}

// Groups the members by their digest at one number; the largest group first, then the one with the lowest rank.
std::vector<std::vector<int>> sides_at(const std::map<int, OpExcerpt>& members, uint64_t sequence) {
  std::map<uint32_t, std::vector<int>> by_digest;
  for (const auto& [rank, excerpt] : members)
    if (const auto digest = excerpt.at(sequence)) by_digest[*digest].push_back(rank);
  std::vector<std::vector<int>> sides;
  for (auto& [digest, ranks] : by_digest) sides.push_back(std::move(ranks));
  std::ranges::sort(sides, [](const std::vector<int>& a, const std::vector<int>& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  return sides;
}

// The first side is the majority; all others are in the minority.
OpSplit split_of(std::vector<std::vector<int>> sides, uint64_t sequence, bool exact) {
  OpSplit split{sequence, exact, {}, std::move(sides.front())};
  for (size_t i = 1; i < sides.size(); ++i) split.fewer.insert(split.fewer.end(), sides[i].begin(), sides[i].end());
  std::ranges::sort(split.fewer);
  return split;
}

std::string ranks_in_words(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", list_in_words(ranks));
}

}  // namespace

// digests.back() belongs to `last`, the one before it to last - 1, and so on.
std::optional<uint32_t> OpExcerpt::at(uint64_t sequence) const {
  if (sequence > last || last - sequence >= digests.size()) return std::nullopt;
  return digests[digests.size() - 1 - static_cast<size_t>(last - sequence)];
}

void OpHistory::add(const OpInfo& op) {
  const uint32_t before = last_ == 0 ? 0 : ring_[last_ % kKept].digest;
  ++last_;
  // The ring starts small, since most groups see few operations, and grows to kKept.
  if (ring_.size() <= last_ % kKept) ring_.resize(std::min(kKept, 2 * ring_.size() + 64));
  ring_[last_ % kKept] = {digest_of(op, before), op};
}

OpExcerpt OpHistory::excerpt(size_t operations) const {
  OpExcerpt excerpt{last_, {}};
  const auto count = static_cast<size_t>(std::min<uint64_t>({operations, last_, kKept}));
  for (uint64_t sequence = last_ - count + 1; sequence <= last_; ++sequence)
    excerpt.digests.push_back(ring_[sequence % kKept].digest);
  return excerpt;
}

const OpInfo* OpHistory::find(uint64_t sequence) const {
  if (sequence == 0 || sequence > last_ || last_ - sequence >= kKept) return nullptr;
  return &ring_[sequence % kKept].op;
}

// Goes through all numbers that any member has a digest for, oldest first; the first with two different digests wins. A
// member that is ahead or has forgotten simply has no digest there.
std::optional<OpSplit> find_split(const std::map<int, OpExcerpt>& members, bool all_have_ended) {
  std::set<uint64_t> numbers;
  uint64_t fewest = UINT64_MAX, most = 0;
  for (const auto& [rank, excerpt] : members) {
    for (size_t i = 0; i < excerpt.digests.size(); ++i) numbers.insert(excerpt.last - i);
    fewest = std::min(fewest, excerpt.last);
    most = std::max(most, excerpt.last);
  }
  for (const uint64_t number : numbers) {
    auto sides = sides_at(members, number);
    if (sides.size() < 2) continue;
    // Equal digests one number earlier, on all members, show that this operation is the first to differ.
    const auto before = sides_at(members, number - 1);
    size_t here = 0;
    for (const auto& side : sides) here += side.size();
    const bool exact = number == 1 || (before.size() == 1 && before.front().size() >= here);
    return split_of(std::move(sides), number, exact);
  }
  if (!all_have_ended || fewest >= most) return std::nullopt;
  // All histories agree, but some ranks have ended earlier: the next operation is missing there.
  std::vector<int> ended, went_on;
  for (const auto& [rank, excerpt] : members) (excerpt.last == fewest ? ended : went_on).push_back(rank);
  return ended.size() < went_on.size() ? OpSplit{fewest + 1, true, ended, went_on}
                                       : OpSplit{fewest + 1, true, went_on, ended};
}

std::string describe_split(const OpSplit& split, const std::string& group, int rank, const OpInfo* own) {
  std::string text =
      fmt::format("{} of group {} {} not started the same operations as {}: ", ranks_in_words(split.fewer), group,
                  split.fewer.size() == 1 ? "has" : "have", ranks_in_words(split.others));
  // The digest does not say in which respect they differ.
  constexpr const char* kWhat = "differs in its kind, dtype, size, reduction or root, or is missing.";
  text += split.exact ? fmt::format("#{} {}", split.sequence, kWhat)
                      : fmt::format("one at or before #{} {}", split.sequence, kWhat);
  if (split.exact && own != nullptr) text += fmt::format("\n  rank {}: {}", rank, own->describe());
  return text +
         "\n  Results computed since then are wrong. MEGALITH_COMM_DEBUG=1 compares every operation before it "
         "starts and shows both sides.";
}

}  // namespace megalith::comm
