// OverlappedUpdate: applies an optimizer's update in two halves. The parameters that the next forward pass needs first
// are updated at once, on the whole device; those of later layers on a second stream beside that forward pass, on a few
// multiprocessors that its products leave free. Each part of the model waits for its own parameters, the host for none.
//
//   compute   … backward │ update of the embedding, layers 0 and 1 │ forward of layer 0 │ layer 1 │ layer 2 │ …
//   side                 │                                         │ update of layer 2 │ layer 3 │ …
//
// An update only moves memory, and products are limited by the power that the device may draw, so that beside products
// it costs little. All bits are those of an update at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/gemm/gemm.h"
#include "megalith/optim/overlap/overlap_plan.h"
#include "megalith/optim/overlap/side_queue.h"

namespace megalith::optim {

// A part of a model chunk that runs forward as one: the embedding, a layer, the head.
struct ForwardPart {
  std::vector<const nn::Parameter*> parameters;  // all that it reads
  double flops_per_token = 0;                    // its products have at least so many
};

// A stretch of state that is updated with the same kernel, one bucket of a buffer: what the overlap has to know of it.
struct UpdateBlock {
  // A parameter of which the block has some elements, from element `begin` on, a multiple of 64.
  struct Item {
    const nn::Parameter* parameter = nullptr;
    int64_t begin = 0;
  };
  std::vector<Item> items;       // in the order of the block
  int64_t numel = 0;             // elements, with padding
  double bytes_per_element = 0;  // that an update reads and writes
  bool fp32 = true;              // all of its state is
};

// Part of an update: elements [begin, end) of a block, both multiples of 64.
struct UpdatePiece {
  size_t block = 0;  // its number
  int64_t begin = 0, end = 0;
  size_t part = 0;  // the first part of the model that reads any of its parameters
};
// Cuts blocks by part. Every element of a parameter is in one piece; pieces are in the order of parts, and parameters
// that no part reads come first.
std::vector<UpdatePiece> update_pieces(std::span<const UpdateBlock> blocks, std::span<const ForwardPart> parts);

// How fast the device is, and what is worth a second stream.
struct OverlapSettings {
  // Multiprocessors that the update has, and that products leave free. Of an H200's 132, sixteen move about a quarter
  // of what all of them do; the others lose less than their share, because clocks rise where power limits them.
  int multiprocessors = 16;
  bool products_spare = true;  // products leave them free; without it, forward passes have the bits of any other
  // The update reaches so much on those multiprocessors, with fp32 state and with stored state (whose kernel also has
  // more to compute).
  double bytes_per_second = 0.9e12;
  double stored_bytes_per_second = 0.4e12;
  // Forward products reach at most so much: those of an H200, where power limits them. A smaller number hides more, but
  // the device may have to wait.
  double flops_per_second = 700e12;
  OverlapLimits limits{.least_first = 5e-3, .least_beside = 4e-3};

  // For tests: overlaps every update, however small, with the bits of one that does not overlap.
  static OverlapSettings always() { return {.products_spare = false, .flops_per_second = 1, .limits = {}}; }
};

// One thread. The parameters outlive it.
class OverlappedUpdate {
 public:
  OverlappedUpdate(std::span<const UpdateBlock> blocks, std::vector<ForwardPart> parts, const OverlapSettings& settings,
                   std::unique_ptr<SideQueue> queue);
  // Waits as finish() does: the second stream must not outlast the memory that it works on.
  ~OverlappedUpdate();
  OverlappedUpdate(const OverlappedUpdate&) = delete;
  OverlappedUpdate& operator=(const OverlappedUpdate&) = delete;

  // Updates a piece on the current stream, on at most `multiprocessors` (0: all).
  using Update = std::function<void(const UpdatePiece& piece, int multiprocessors)>;
  // Updates all blocks. The next forward pass has `tokens` in its first micro-batch; with 0, nothing is left for later.
  // `update` may be called later, and must hold all that it needs.
  void run(int64_t tokens, const Update& update);
  // Waits, on the current stream, until these parameters have been updated. For parameters of one part of the model,
  // just before it runs: its products then leave multiprocessors free or not, as the plan says.
  void wait_for(std::span<nn::Parameter* const> parameters);
  // Waits, on the current stream, for everything. Does nothing if nothing is left.
  void finish();

  // Returns how many pieces of the last update ran, or will run, beside a forward pass.
  size_t beside() const { return beside_; }

 private:
  OverlapPlan plan(int64_t tokens) const;
  void spare(bool on);

  const std::vector<ForwardPart> parts_;
  const OverlapSettings settings_;
  const std::vector<UpdatePiece> pieces_;
  std::vector<double> side_seconds_;  // by part
  std::unordered_map<const nn::Parameter*, size_t> part_of_, last_piece_of_;
  ops::GemmPlans* plans_ = nullptr;
  const std::unique_ptr<SideQueue> queue_;
  // State of an update.
  size_t first_piece_ = 0;  // the first one in the queue
  size_t beside_ = 0;       // pieces in the queue
  size_t waited_ = 0;       // pieces in the queue that have been waited for
  size_t spared_parts_ = 0;
  Update held_;  // until finish(): pieces read memory that it holds
  std::optional<ops::SparedMultiprocessors> room_;
};

}  // namespace megalith::optim
