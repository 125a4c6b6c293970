// Walks over the parameters from the last to the first and keeps one bucket open; it is closed once it is large enough,
// or around a parameter that needs a bucket of its own. Padding goes to the end of a bucket, so that it divides into
// equal, aligned shards.
#include "megalith/optim/buffer_layout.h"

#include <numeric>

#include "megalith/base/error.h"

namespace megalith::optim {

BufferLayout plan_buffer(const std::vector<BufferItem>& items, const BufferRules& rules) {
  check(rules.shards >= 1 && rules.bucket_elements >= 0, "a buffer of {} shards and buckets of {} elements",
        rules.shards, rules.bucket_elements);
  const int64_t shard_multiple = rules.shards * kAlignElements;
  // Shards must start aligned. 128 elements are 256 bytes in 16-bit types, the alignment that cuBLAS prefers. NCCL's
  // ring sends messages of bucket / ranks bytes, which are fastest if divisible by a large power of two.
  const int64_t bucket_multiple =
      rules.pad_for_bandwidth ? std::lcm(shard_multiple, int64_t{65536}) : std::lcm(shard_multiple, int64_t{128});
  BufferLayout layout;
  layout.shards = rules.shards;
  layout.items.resize(items.size());
  BufferLayout::Bucket open;
  int64_t end = 0;  // end of the last item placed, or of the last bucket closed
  const auto close = [&] {
    if (open.items.empty()) return;
    open.end = round_up(end, bucket_multiple);
    end = open.end;
    layout.buckets.push_back(std::move(open));
    open = {.begin = end, .end = end, .items = {}};
  };
  for (size_t left = items.size(); left > 0; --left) {
    const BufferItem& item = items[left - 1];
    if (item.own_bucket) close();  // before and, below, after it
    const int64_t begin = round_up(end, kAlignElements);
    end = begin + item.numel;
    layout.items[left - 1] = {begin, end, static_cast<int>(layout.buckets.size())};
    open.items.push_back(static_cast<int>(left - 1));
    if (item.own_bucket || (rules.bucket_elements > 0 && end - open.begin >= rules.bucket_elements)) close();
  }
  close();
  return layout;
}

}  // namespace megalith::optim
