#include "megalith/comm/op.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megalith/base/text.h"

namespace megalith::comm {

namespace {

std::string tensor_text(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return fmt::format("{} [{}]", to_lower(c10::toString(tensor.scalar_type())),
                     fmt::join(sizes.begin(), sizes.end(), ", "));
}

// The tensor whose shape all members must agree on.
const at::Tensor& common_tensor(const Op& op) {
  return op.kind == OpKind::kAllGather || op.kind == OpKind::kReduceScatter ? op.input : op.output;
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

std::string Op::describe() const {
  std::string text = to_string(kind);
  if (*label != '\0') text += fmt::format(" '{}'", label);
  text += fmt::format(" #{}", sequence);
  if (output.defined()) text += ", " + tensor_text(common_tensor(*this));
  if (kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter) text += fmt::format(", {}", to_string(reduce));
  if (kind == OpKind::kBroadcast) text += fmt::format(", from group rank {}", peer);
  return text;
}

std::string Op::signature() const {
  std::string text = to_string(kind);
  if (kind == OpKind::kAllToAll) return text + " " + to_lower(c10::toString(output.scalar_type()));
  if (output.defined()) text += " " + tensor_text(common_tensor(*this));
  if (kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter) text += fmt::format(" {}", to_string(reduce));
  if (kind == OpKind::kBroadcast) text += fmt::format(" from group rank {}", peer);
  return text;
}

}  // namespace megalith::comm
