// LLaMA-Factory's greedy knapsack: a row takes the longest sample that still fits, again and again. Samples wait in a
// map by length, so the choice costs O(log n); rows come out nearly full as long as short samples are left.
#include "megalith/data/sft/packing.h"

#include <map>

#include "megalith/base/error.h"

namespace megalith::data {

std::vector<std::vector<size_t>> plan_rows(std::span<const int64_t> lengths, int64_t capacity) {
  std::map<int64_t, std::vector<size_t>> waiting;  // by length
  for (size_t i = 0; i < lengths.size(); ++i) {
    check(lengths[i] <= capacity, "sample {} of {} tokens does not fit into a row of {}", i, lengths[i], capacity);
    waiting[lengths[i]].push_back(i);
  }
  std::vector<std::vector<size_t>> rows;
  while (!waiting.empty()) {
    std::vector<size_t> row;
    int64_t room = capacity;
    // upper_bound(room) is the first length that does not fit, so its predecessor is the longest that does; the row is
    // full when there is none.
    for (auto next = waiting.upper_bound(room); next != waiting.begin(); next = waiting.upper_bound(room)) {
      --next;
      room -= next->first;
      row.push_back(next->second.back());
      next->second.pop_back();
      if (next->second.empty()) waiting.erase(next);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// Drops samples that do not fit, then fills rows by plan_rows and pads them; pieces remember the samples' lengths.
PackedRows pack_samples(std::vector<Sequence> samples, int64_t cutoff, bool neat, int32_t pad) {
  PackedRows result;
  std::erase_if(samples, [&](const Sequence& sample) {
    const bool too_long = std::ssize(sample.ids) > cutoff;
    result.too_long += too_long ? 1 : 0;
    return too_long || sample.ids.empty();
  });
  std::vector<int64_t> lengths;
  lengths.reserve(samples.size());
  for (const Sequence& sample : samples) lengths.push_back(std::ssize(sample.ids));
  for (const std::vector<size_t>& members : plan_rows(lengths, cutoff)) {
    Sequence row;
    row.pieces_attend = !neat;
    for (const size_t i : members) {
      for (MediaReference& medium : samples[i].media) {
        medium.first += std::ssize(row.ids);
        row.media.push_back(std::move(medium));
      }
      row.ids.insert(row.ids.end(), samples[i].ids.begin(), samples[i].ids.end());
      row.labels.insert(row.labels.end(), samples[i].labels.begin(), samples[i].labels.end());
      row.pieces.push_back(static_cast<int32_t>(lengths[i]));
    }
    row.ids.resize(static_cast<size_t>(cutoff) + 1, pad);
    row.labels.resize(static_cast<size_t>(cutoff) + 1, kIgnoredLabel);
    result.rows.push_back(std::move(row));
  }
  return result;
}

}  // namespace megalith::data
