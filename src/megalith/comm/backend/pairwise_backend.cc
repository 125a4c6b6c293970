// Collectives go to one backend that connects all members, transfers to a backend per pair; each is opened at its first
// use. A batch needs no care against deadlock here: the connections of pairs are independent, and a transfer is started
// without waiting for it.
#include "megalith/comm/backend/pairwise_backend.h"

#include <map>
#include <utility>

namespace megalith::comm {

namespace {

class PairwiseBackend : public Backend {
 public:
  PairwiseBackend(int rank, std::function<std::unique_ptr<Backend>()> connect_all,
                  std::function<std::unique_ptr<Backend>(int peer)> connect_pair)
      : rank_(rank), connect_all_(std::move(connect_all)), connect_pair_(std::move(connect_pair)) {}

  std::shared_ptr<PendingOp> start(const Op& op) override {
    if (is_point_to_point(op.kind)) return start_batch({op})[0];
    if (!all_) all_ = connect_all_();
    return all_->start(op);
  }

  std::vector<std::shared_ptr<PendingOp>> start_batch(const std::vector<Op>& ops) override {
    std::vector<std::shared_ptr<PendingOp>> pending;
    for (const Op& op : ops) {
      std::unique_ptr<Backend>& pair = pairs_[op.peer];
      if (!pair) pair = connect_pair_(op.peer);
      // Within a pair, the lower group rank is 0 and the higher is 1.
      Op within = op;
      within.peer = op.peer > rank_ ? 1 : 0;
      pending.push_back(pair->start_batch({within})[0]);
    }
    return pending;
  }

 private:
  const int rank_;
  const std::function<std::unique_ptr<Backend>()> connect_all_;
  const std::function<std::unique_ptr<Backend>(int)> connect_pair_;
  std::unique_ptr<Backend> all_;
  std::map<int, std::unique_ptr<Backend>> pairs_;  // by the peer's group rank
};

}  // namespace

std::unique_ptr<Backend> make_pairwise_backend(int rank, std::function<std::unique_ptr<Backend>()> connect_all,
                                               std::function<std::unique_ptr<Backend>(int peer)> connect_pair) {
  return std::make_unique<PairwiseBackend>(rank, std::move(connect_all), std::move(connect_pair));
}

}  // namespace megalith::comm
