// Group: the collectives and transfers of one set of ranks. All communication between ranks goes through it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/comm/op/op.h"

namespace megalith::comm {

class PendingOp;
class World;
struct GroupState;

// Another rank failed, so this one cannot continue: a consequence, not the cause. Carries the message of the first
// failure.
class PeerFailure : public CommError {
 public:
  using CommError::CommError;
};

// An operation that has been started. The caller must wait() before it touches the output again (or, for a send, before
// it overwrites the input). Dropping a Work does not stop the operation, and its buffers stay alive until it ends, but
// an error in it is then noticed only by the watchdog.
class [[nodiscard]] Work {
 public:
  Work() = default;  // has nothing to wait for, as in a group of one rank
  ~Work();
  Work(Work&&) = default;
  Work& operator=(Work&&) = default;
  // Blocks until the operation is done; on CUDA the current stream waits instead of the host. Throws CommError when the
  // operation fails or exceeds the group's time limit; the message names it and the ranks that did not arrive. A second
  // call returns at once.
  void wait();
  // Returns whether wait() would return without blocking. (Gloo reports a transfer only in wait(): false until then.)
  bool done() const;

 private:
  friend class Group;
  // One operation; a batch of transfers has several.
  struct Part {
    std::shared_ptr<PendingOp> pending;
    uint64_t record = 0;  // the recorder's number
    OpInfo op;
  };
  std::shared_ptr<GroupState> group_;
  std::vector<Part> parts_;
};

// One transfer of a batch; see Group::batch.
struct Transfer {
  OpKind kind;        // kSend or kRecv
  at::Tensor tensor;  // read or written; contiguous
  int peer;           // group rank of the other side
};

// A set of ranks and this rank's place in it. A small handle: copies share the connection. Created by World::group;
// connects at the first operation, so that unused groups cost nothing.
//
// Rules: all members call the same collectives in the same order; tensors are on device(), contiguous, and of equal
// dtype and shape on all members unless the comment says otherwise; one thread per rank. Ranks in arguments are group
// ranks. A group of one rank returns at once. Labels are string literals that say what the caller is doing; they appear
// in error messages.
class Group {
 public:
  Group() = default;  // not usable; assign one from World::group

  const std::string& name() const;        // "tp"
  int rank() const;                       // this rank's place in the group
  int size() const;                       // number of members
  const std::vector<int>& ranks() const;  // world ranks, by group rank
  at::Device device() const;              // device of the run; the tensors of every operation must be on it

  // Reduces in place over all members; every member ends with the same bits. kAvg divides the sum by size() (floating
  // point only).
  void all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum, const char* label = "") const;
  Work all_reduce_async(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum, const char* label = "") const;

  // [n, …] of each member -> [size*n, …] on all, in group-rank order. `output` holds size() times as many elements.
  void all_gather(const at::Tensor& output, const at::Tensor& input, const char* label = "") const;
  Work all_gather_async(const at::Tensor& output, const at::Tensor& input, const char* label = "") const;

  // [size*n, …] on each -> the sum (…) of block r on member r: [n, …]. The counterpart of all_gather.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                      const char* label = "") const;
  Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                            const char* label = "") const;

  // Row block i of `input` goes to member i; block i of `output` comes from member i. Splits count rows of dimension 0
  // and may differ between members, as long as sender and receiver agree. Without splits, blocks are equal.
  void all_to_all(const at::Tensor& output, const at::Tensor& input, std::vector<int64_t> output_splits = {},
                  std::vector<int64_t> input_splits = {}, const char* label = "") const;
  Work all_to_all_async(const at::Tensor& output, const at::Tensor& input, std::vector<int64_t> output_splits = {},
                        std::vector<int64_t> input_splits = {}, const char* label = "") const;

  // Copies the root's tensor to all members, in place.
  void broadcast(const at::Tensor& tensor, int root, const char* label = "") const;
  Work broadcast_async(const at::Tensor& tensor, int root, const char* label = "") const;

  // Sends one tensor to one member, which calls recv with the same dtype and number of elements. Transfers between two
  // ranks keep their order. A send may finish only when the other side receives: two ranks that send to each other must
  // use batch().
  void send(const at::Tensor& tensor, int peer, const char* label = "") const;
  Work send_async(const at::Tensor& tensor, int peer, const char* label = "") const;
  void recv(const at::Tensor& tensor, int peer, const char* label = "") const;
  Work recv_async(const at::Tensor& tensor, int peer, const char* label = "") const;

  // Runs several sends and receives as one operation that cannot deadlock, whatever their order.
  void batch(const std::vector<Transfer>& transfers, const char* label = "") const;
  Work batch_async(const std::vector<Transfer>& transfers, const char* label = "") const;

  // Connects this rank to the peers that it will send to and receive from. Each of them names this rank likewise, and
  // all call it before the group's first transfer. Blocks the host. Peers that are already connected cost nothing.
  //
  // Why: NCCL connects two ranks inside their first transfer, one direction at a time, and blocks the host meanwhile. A
  // batch with a second, not yet connected direction would therefore hold back its first one, which the peer may need
  // before it gets to the second: a deadlock. See docs/architecture.md.
  void open_transfers(const std::vector<int>& send_to, const std::vector<int>& receive_from) const;

  // Returns when all members have called it (blocks the host, also on CUDA).
  void barrier(const char* label = "") const;

  // Gathers byte strings, whose lengths may differ: every member gets all of them, in group-rank order.
  std::vector<std::string> all_gather_bytes(const std::string& bytes, const char* label = "") const;
  // Does the same for the root only; other members get an empty list.
  std::vector<std::string> gather_bytes(const std::string& bytes, int root, const char* label = "") const;
  // Returns the root's bytes on all members; the argument of the others is ignored.
  std::string broadcast_bytes(const std::string& bytes, int root, const char* label = "") const;

 private:
  friend class World;
  explicit Group(std::shared_ptr<GroupState> state) : state_(std::move(state)) {}

  // All operations go through start or start_transfers, and from there through start_all (see group.cc).
  class Starting;

  Work start(Op op) const;
  Work start_transfers(const std::vector<Transfer>& transfers, const char* label) const;
  Work start_all(std::vector<Op> ops, bool as_batch) const;

  std::shared_ptr<GroupState> state_;
};

}  // namespace megalith::comm
