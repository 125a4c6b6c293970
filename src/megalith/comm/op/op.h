// Describes one communication operation for the recorder, the watchdog, debug mode and error messages.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace megalith::comm {

// How values of several ranks are combined.
enum class ReduceOp { kSum, kAvg, kMax, kMin };

// The operations of Group.
enum class OpKind { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kBarrier, kSend, kRecv };
inline constexpr size_t kOpKinds = 8;

// Return the names that messages use: "sum", "all_reduce".
const char* to_string(ReduceOp op);
const char* to_string(OpKind kind);
// Returns whether it is a transfer between two ranks, which the other members of the group take no part in.
inline bool is_point_to_point(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

// An operation as this rank requested it. Cheap to create: no text is formatted until somebody reads it.
struct Op {
  OpKind kind = OpKind::kBarrier;
  // The caller's purpose ("grad_norm"); a string literal, or text that outlives the operation.
  const char* label = "";
  ReduceOp reduce = ReduceOp::kSum;
  // Group rank of the root (broadcast) or of the other side (send, recv); -1 otherwise.
  int peer = -1;
  at::Tensor output;  // written; for all_reduce and broadcast also read; for send only read
  at::Tensor input;   // undefined where the operation works in place
  // Rows per rank of dimension 0, all_to_all only; empty means equal parts.
  std::vector<int64_t> output_splits;
  std::vector<int64_t> input_splits;

  // Number among the collectives of its group, from 1, the same on all members; for send and recv the number among the
  // transfers between the two ranks in that direction. Set by Group.
  uint64_t sequence = 0;

  std::string describe() const;   // see OpInfo
  std::string signature() const;  // see OpInfo
};

// The part of an operation that messages show. Holds no tensors, so that a record keeps no memory alive.
struct OpInfo {
  OpInfo() = default;
  // Copies all but the tensors, of which it keeps dtype and shape.
  OpInfo(const Op& op);  // NOLINT(google-explicit-constructor): an Op may be passed wherever its info is expected

  OpKind kind = OpKind::kBarrier;
  const char* label = "";
  ReduceOp reduce = ReduceOp::kSum;
  int peer = -1;
  uint64_t sequence = 0;
  // The tensor whose shape all members must agree on; undefined for operations without one.
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::SmallVector<int64_t, 4> sizes;
  // Bytes of the whole tensor: the result of a gather, the input of a scatter or an all-to-all, else the tensor itself.
  int64_t bytes = 0;

  // Returns "all_reduce 'grad_norm' #12, float32 [4, 8], sum".
  std::string describe() const;
  // Returns everything that must be equal on all members: kind, dtype, shape, reduction, root. Splits differ between
  // ranks and are left out, and so is the label.
  std::string signature() const;
};

}  // namespace megalith::comm
