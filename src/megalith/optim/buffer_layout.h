// Where parameters lie in a flat buffer and how it is cut into buckets. Pure arithmetic: the same on every rank that
// holds parameters of the same sizes.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith::optim {

// Every parameter starts at a multiple of this, and so does every rank's shard of a bucket.
inline constexpr int64_t kAlignElements = 64;

struct BufferItem {
  int64_t numel = 0;
  bool own_bucket = false;  // tied embeddings: both stages that hold one reduce it alone
};

struct BufferRules {
  int64_t bucket_elements = 0;     // a bucket is closed once it has so many; 0: one bucket
  int shards = 1;                  // ranks that own equal parts of each bucket
  bool pad_for_bandwidth = false;  // buckets end at multiples of 65536 elements: NCCL's fastest sizes
};

struct BufferLayout {
  struct Item {
    int64_t begin = 0, end = 0;  // elements of the buffer
    int bucket = 0;
  };
  struct Bucket {
    int64_t begin = 0, end = 0;  // with the padding behind its last item
    std::vector<int> items;      // in the order of the buffer
    int64_t numel() const { return end - begin; }
  };
  std::vector<Item> items;  // in the order they were given in
  std::vector<Bucket> buckets;
  int shards = 1;

  int64_t numel() const { return buckets.empty() ? 0 : buckets.back().end; }
  // Rank r of `shards` owns [begin + r n / shards, begin + (r+1) n / shards) of a bucket of n elements.
  int64_t shard_numel(int bucket) const { return buckets[bucket].numel() / shards; }
  int64_t shard_begin(int bucket, int rank) const { return buckets[bucket].begin + rank * shard_numel(bucket); }
};

// Items are given in the order of the forward pass and laid out in reverse: about the order in which their gradients
// become ready, so that buckets fill one after the other.
BufferLayout plan_buffer(const std::vector<BufferItem>& items, const BufferRules& rules);

}  // namespace megalith::optim
