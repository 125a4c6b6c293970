// A wrong shape on one rank shows up elsewhere, as a hang or as wrong numbers, because the transports trust their
// callers. So each operation is checked on the rank that asks for it, before anything is sent; every message names the
// operation, its label and its group. The costs are a few comparisons per operation, without formatting.
#include "megalith/comm/op_checks_internal.h"

#include <numeric>

#include "megalith/base/error.h"

namespace megalith::comm {

namespace {

// Contiguous memory is what the transports move; a copy made here would lose the result of an operation in place.
void check_tensor(const GroupState& group, const Op& op, const at::Tensor& tensor, const char* role) {
  check(tensor.defined(), "{} '{}' of group {}: the {} tensor is undefined", to_string(op.kind), op.label, group.name,
        role);
  check(tensor.is_contiguous(), "{} '{}' of group {}: the {} tensor is not contiguous", to_string(op.kind), op.label,
        group.name, role);
  // Gloo would accept a CPU tensor in a CUDA run, NCCL would not. Rejecting it here makes tests on Gloo find it.
  check(
      tensor.device() == group.owner->device,
      "{} '{}' of group {}: the {} tensor is on {}, but this run's tensors are on {}. Move it to the group's device().",
      to_string(op.kind), op.label, group.name, role, tensor.device().str(), group.owner->device.str());
}

void check_peer(const GroupState& group, const Op& op) {
  check(op.peer >= 0 && op.peer < static_cast<int>(group.ranks.size()),
        "{} '{}' of group {}: group rank {} does not exist, the group has {} ranks", to_string(op.kind), op.label,
        group.name, op.peer, group.ranks.size());
}

// Checks that `whole` holds one block of the size of `part` per member.
void check_blocks(const GroupState& group, const Op& op, const at::Tensor& whole, const at::Tensor& part) {
  const auto members = static_cast<int64_t>(group.ranks.size());
  check(whole.numel() == part.numel() * members && whole.scalar_type() == part.scalar_type(),
        "{} '{}' of group {}: {} elements do not make {} blocks of {}, or the dtypes differ", to_string(op.kind),
        op.label, group.name, whole.numel(), members, part.numel());
}

// One split per member, adding up to the rows; without splits, the rows must divide evenly.
void check_splits(const GroupState& group, const Op& op, const std::vector<int64_t>& splits, const at::Tensor& tensor,
                  const char* role) {
  const auto members = static_cast<int64_t>(group.ranks.size());
  const int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty()) {
    check(rows % members == 0, "{} '{}' of group {}: {} {} rows cannot be cut into {} equal parts; pass splits",
          to_string(op.kind), op.label, group.name, rows, role, members);
    return;
  }
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  check(static_cast<int64_t>(splits.size()) == members && sum == rows,
        "{} '{}' of group {}: {} {} splits with sum {} for {} rows and {} ranks", to_string(op.kind), op.label,
        group.name, splits.size(), role, sum, rows, members);
}

}  // namespace

// A barrier has no tensors. All-reduce and broadcast work in place, with an output only.
void check_op(const GroupState& group, const Op& op) {
  if (op.kind == OpKind::kBarrier) return;
  check_tensor(group, op, op.output, "output");
  if (op.input.defined()) check_tensor(group, op, op.input, "input");
  switch (op.kind) {
    case OpKind::kAllGather:
      check_blocks(group, op, op.output, op.input);
      break;
    case OpKind::kReduceScatter:
      check_blocks(group, op, op.input, op.output);
      break;
    case OpKind::kAllToAll:
      check_splits(group, op, op.input_splits, op.input, "input");
      check_splits(group, op, op.output_splits, op.output, "output");
      break;
    case OpKind::kBroadcast:
    case OpKind::kSend:
    case OpKind::kRecv:
      check_peer(group, op);
      break;
    default:
      break;
  }
  // An average of integers would be rounded differently by each transport.
  const bool reduces = op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduceScatter;
  check(!reduces || op.reduce != ReduceOp::kAvg || op.output.is_floating_point(),
        "{} '{}' of group {}: avg needs a floating-point tensor, this one is {}", to_string(op.kind), op.label,
        group.name, c10::toString(op.output.scalar_type()));
}

}  // namespace megalith::comm
