// The words for operations, in messages and in comparisons. describe() is for people; signature() is what members must
// agree on, so it leaves out everything that may differ: labels, splits, and the shape that a gather or scatter makes.
#include "megalith/comm/op/op.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megalith/base/text.h"

namespace megalith::comm {

namespace {

// "float [4, 8]".
std::string tensor_text(const OpInfo& op) {
  return fmt::format("{} [{}]", to_lower(c10::toString(op.dtype)), fmt::join(op.sizes.begin(), op.sizes.end(), ", "));
}

// Returns the tensor whose shape all members must agree on.
const at::Tensor& common_tensor(const Op& op) {
  return op.kind == OpKind::kAllGather || op.kind == OpKind::kReduceScatter ? op.input : op.output;
}

// Returns the tensor by whose size the cost of an operation is told; see OpInfo::bytes.
const at::Tensor& whole_tensor(const Op& op) {
  return op.kind == OpKind::kReduceScatter || op.kind == OpKind::kAllToAll ? op.input : op.output;
}

}  // namespace

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "?";
}

const char* to_string(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kAllToAll:
      return "all_to_all";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kSend:
      return "send";
    case OpKind::kRecv:
      return "recv";
  }
  return "?";
}

// Sizes fit into the inline storage of SmallVector for up to four dimensions, so recording allocates nothing.
OpInfo::OpInfo(const Op& op) : kind(op.kind), label(op.label), reduce(op.reduce), peer(op.peer), sequence(op.sequence) {
  const at::Tensor& tensor = common_tensor(op);
  if (!tensor.defined()) return;
  dtype = tensor.scalar_type();
  sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  bytes = static_cast<int64_t>(whole_tensor(op).nbytes());
}

std::string OpInfo::describe() const {
  std::string text = to_string(kind);
  if (*label != '\0') text += fmt::format(" '{}'", label);
  text += fmt::format(" #{}", sequence);
  if (dtype != at::ScalarType::Undefined) text += ", " + tensor_text(*this);
  if (kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter) text += fmt::format(", {}", to_string(reduce));
  if (kind == OpKind::kBroadcast) text += fmt::format(", from group rank {}", peer);
  return text;
}

// The shapes of an all-to-all differ between members by design.
std::string OpInfo::signature() const {
  std::string text = to_string(kind);
  if (kind == OpKind::kAllToAll) return text + " " + to_lower(c10::toString(dtype));
  if (dtype != at::ScalarType::Undefined) text += " " + tensor_text(*this);
  if (kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter) text += fmt::format(" {}", to_string(reduce));
  if (kind == OpKind::kBroadcast) text += fmt::format(" from group rank {}", peer);
  return text;
}

std::string Op::describe() const { return OpInfo(*this).describe(); }
std::string Op::signature() const { return OpInfo(*this).signature(); }

}  // namespace megalith::comm
