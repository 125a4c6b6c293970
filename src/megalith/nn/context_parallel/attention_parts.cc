// The pairs of queries and keys that attend to each other, as calls of the kernel. Slices are zigzag (layout/zigzag.h):
// each sequence is cut into 2·ranks chunks, and rank r holds chunks r and 2·ranks-1-r. So for keys of another rank,
// causality without a window has two cases:
//
//   owner < rank   both own chunks see the owner's first chunk in full, and nothing of its second
//   owner > rank   the own second chunk sees both of the owner's in full; the own first chunk sees nothing
//
// Both are half of all pairs, without a mask. Only owner == rank needs a causal mask. A window cuts into chunks at any
// distance and is handled per pair of chunks.
#include <algorithm>

#include "megalith/nn/context_parallel/attention_parts_internal.h"

namespace megalith::nn {

namespace {

using Mask = AttentionPart::Mask;

// Collects ranges of all sequences into one part per mask, and so one kernel call per mask. A query may be added once
// per mask at most.
class PartList {
 public:
  void add(Mask mask, TokenRange queries, TokenRange keys) {
    if (queries.begin == queries.end) return;
    AttentionPart& part = parts_[static_cast<size_t>(mask)];
    part.mask = mask;
    part.queries.push_back(queries);
    part.keys.push_back(keys);
  }
  void move_to(std::vector<AttentionPart>& all) {
    for (AttentionPart& part : parts_)
      if (!part.queries.empty()) all.push_back(std::move(part));
  }

 private:
  AttentionPart parts_[3];
};

// The two chunks of one sequence in a slice.
struct Chunks {
  int64_t begin, size;  // first token; tokens per chunk
  TokenRange half(int which) const { return {begin + which * size, begin + (which + 1) * size}; }
  TokenRange both() const { return {begin, begin + 2 * size}; }
};

std::vector<Chunks> chunks_of(const ops::SequenceLayout& slice) {
  std::vector<Chunks> all;
  const auto& cumulative = slice.cumulative();
  for (size_t s = 0; s + 1 < cumulative.size(); ++s)
    all.push_back({cumulative[s], (cumulative[s + 1] - cumulative[s]) / 2});
  return all;
}

// Returns the index of a rank's chunk in the whole sequence.
int64_t chunk_number(int rank, int half, int ranks) { return half == 0 ? rank : 2 * ranks - 1 - rank; }

// Adds the queries of a chunk and the keys of an earlier one, `distance` tokens before it, under a window. Query i sees
// the keys j >= i - reach; this is a causal mask if both are read backwards.
//
//   reach >= size-1      0 <= reach < size-1      -size < reach < 0
//     ■ ■ ■ ■              ■ ■ ■ ■                  · · ■ ■
//     ■ ■ ■ ■              ■ ■ ■ ■                  · · · ■      (rows: queries, columns: keys)
//     ■ ■ ■ ■              · ■ ■ ■                  · · · ·
//     ■ ■ ■ ■              · · ■ ■                  · · · ·
void add_windowed(TokenRange queries, TokenRange keys, int64_t distance, int64_t window, PartList& parts) {
  const int64_t size = keys.end - keys.begin, reach = window - 1 - distance;
  if (reach >= size - 1) {
    parts.add(Mask::kAll, queries, keys);
  } else if (reach >= 0) {
    parts.add(Mask::kAll, {queries.begin, queries.begin + reach}, keys);
    parts.add(Mask::kCausalFromEnd, {queries.begin + reach, queries.end}, keys);
  } else if (-reach < size) {
    parts.add(Mask::kCausalFromEnd, {queries.begin, queries.end + reach}, {keys.begin - reach, keys.end});
  }
}

std::vector<AttentionPart> windowed_ring_parts(const std::vector<Chunks>& sequences, int rank, int owner, int ranks,
                                               int64_t window) {
  std::vector<AttentionPart> all;
  for (const int q : {0, 1})
    for (const int k : {0, 1}) {
      // By how many chunks the keys precede the queries: the same in every sequence.
      const int64_t ahead = chunk_number(rank, q, ranks) - chunk_number(owner, k, ranks);
      PartList parts;
      for (const Chunks& s : sequences) {
        if (ahead == 0) parts.add(Mask::kCausal, s.half(q), s.half(k));
        if (ahead > 0) add_windowed(s.half(q), s.half(k), ahead * s.size, window, parts);
      }
      parts.move_to(all);
    }
  return all;
}

}  // namespace

std::vector<AttentionPart> ring_parts(const ops::SequenceLayout& slice, int rank, int owner, int ranks,
                                      int64_t window) {
  const std::vector<Chunks> sequences = chunks_of(slice);
  if (window > 0 && window < ranks * slice.longest()) return windowed_ring_parts(sequences, rank, owner, ranks, window);
  PartList parts;
  for (const Chunks& s : sequences) {
    if (owner == rank) parts.add(Mask::kCausal, s.both(), s.both());
    if (owner < rank) parts.add(Mask::kAll, s.both(), s.half(0));
    if (owner > rank) parts.add(Mask::kAll, s.half(1), s.both());
  }
  std::vector<AttentionPart> all;
  parts.move_to(all);
  return all;
}

std::vector<AttentionPart> gathered_parts(const ops::SequenceLayout& slice, int rank, int ranks) {
  std::vector<AttentionPart> all;
  for (const int half : {0, 1}) {
    PartList parts;
    for (const Chunks& s : chunks_of(slice)) {
      // The keys are those of the whole sequence; the chunk sees all of them up to its own end.
      const int64_t begin = ranks * s.begin, seen = (chunk_number(rank, half, ranks) + 1) * s.size;
      parts.add(Mask::kCausal, s.half(half), {begin, begin + seen});
    }
    parts.move_to(all);
  }
  return all;
}

}  // namespace megalith::nn
