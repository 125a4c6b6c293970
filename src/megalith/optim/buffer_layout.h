// Places parameters in a flat buffer and cuts the buffer into buckets. Pure arithmetic: every rank that holds
// parameters of the same sizes computes the same layout without communication.
//
//   | item 5 | item 4 |pad| item 3 |  pad   | item 2 | item 1 | item 0 |  pad   |
//   |<------------ bucket 0 -------------->|<------------ bucket 1 ----------->|
//   | rank 0   | rank 1   | rank 2 | rank 3 |           shards of each bucket, ZeRO-1 only
#pragma once

#include <cstdint>
#include <vector>

namespace megalith::optim {

// The scales of a parameter in fp8 begin at a multiple of so many: 16 bytes, as cuBLASLt's fp8 products ask.
inline constexpr int64_t kFp8ScaleMultiple = 4;

// Every parameter starts at a multiple of this, and so does every rank's shard of a bucket.
inline constexpr int64_t kAlignElements = 64;

// Returns the smallest multiple of `multiple` that is at least `n`.
constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// One parameter to be placed.
struct BufferItem {
  int64_t numel = 0;
  bool own_bucket = false;  // tied embeddings: both stages that hold a copy reduce it in a bucket of its own
};

// How a buffer is cut into buckets.
struct BufferRules {
  int64_t bucket_elements = 0;     // a bucket is closed once it has this many elements; 0 means a single bucket
  int shards = 1;                  // ranks that own equal parts of each bucket
  bool pad_for_bandwidth = false;  // buckets end at multiples of 65536 elements: NCCL's fastest sizes
};

// The result of plan_buffer.
struct BufferLayout {
  // The place of one parameter.
  struct Item {
    int64_t begin = 0, end = 0;  // elements of the buffer
    int bucket = 0;
  };
  // A stretch of the buffer that is reduced by one collective.
  struct Bucket {
    int64_t begin = 0, end = 0;  // including the padding after its last item
    std::vector<int> items;      // in buffer order
    int64_t numel() const { return end - begin; }
  };
  std::vector<Item> items;  // in the order given to plan_buffer
  std::vector<Bucket> buckets;
  int shards = 1;

  // Elements of the whole buffer, padding included.
  int64_t numel() const { return buckets.empty() ? 0 : buckets.back().end; }
  // Rank r of `shards` owns [begin + r n / shards, begin + (r+1) n / shards) of a bucket of n elements.
  int64_t shard_numel(int bucket) const { return buckets[bucket].numel() / shards; }
  int64_t shard_begin(int bucket, int rank) const { return buckets[bucket].begin + rank * shard_numel(bucket); }
};

// Lays out `items`, given in the order of the forward pass, in reverse: roughly the order in which their gradients
// become ready, so that buckets fill up one after the other.
BufferLayout plan_buffer(const std::vector<BufferItem>& items, const BufferRules& rules);

}  // namespace megalith::optim
