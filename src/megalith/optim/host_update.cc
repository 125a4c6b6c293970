// Updates state in host memory for parameters on a device, piece by piece: while the host updates one piece, the
// gradients of the next come in. Staging takes two pieces, whatever the model's size.
#include "megalith/optim/host_update.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <future>

#include "megalith/comm/op/current_device.h"

namespace megalith::optim {

namespace {

// The pipeline of run(), with two staging buffers in turn; each transfer has its own thread. Piece i + 1 may only come
// in after piece i - 1, which used the same buffer, has gone out:
//
//   host:        | update 0 |     | update 1 |     | update 2 |
//   incoming:  0 | 1        |     | 2        |     |          |
//   outgoing:    |          |  0  |          |  1  |          | 2

// Part of one run of a block: elements [begin, begin + n).
struct Piece {
  const StateBlock* block;
  int64_t begin, n;
  size_t group;
};

// Cuts the runs of all offloaded blocks into pieces, so that each piece has one group. A run that ends within the
// elements of a scale is extended to their end, over padding: stored state is not cut there.
std::vector<Piece> pieces_of(const std::vector<StateBlock>& blocks) {
  std::vector<Piece> pieces;
  for (const StateBlock& block : blocks) {
    if (!block.on_host) continue;
    for (const StateRun& run : block.runs) {
      const int64_t end = (run.end + ops::kScaleBlock - 1) / ops::kScaleBlock * ops::kScaleBlock;
      for (int64_t at = run.begin; at < end; at += HostUpdate::kPieceElements)
        pieces.push_back({&block, at, std::min(HostUpdate::kPieceElements, end - at), run.group});
    }
  }
  return pieces;
}

struct Copy {
  at::Tensor to, from;
};

// Copies on a new thread. Neither the caller's NoGradGuard nor its current device applies there, so both are set.
std::future<void> copy_in_background(std::vector<Copy> copies) {
  return std::async(std::launch::async, [copies = std::move(copies)] {
    const at::NoGradGuard no_grad;
    for (const auto& [to, from] : copies) {
      comm::make_device_current(to.is_cpu() ? from.device() : to.device());
      to.copy_(from);
    }
  });
}

}  // namespace

// Blocks may differ in dtype: a staging tensor is replaced when the dtype changes, and reused otherwise. The other
// staging buffer may be in use by a block of another dtype.
void HostUpdate::allocate(Staging& staging, const StateBlock& block) {
  const auto make = [&block](at::Tensor& tensor, const at::Tensor& like) {
    if (tensor.defined() && tensor.scalar_type() == like.scalar_type()) return;
    tensor = at::empty({kPieceElements},
                       at::TensorOptions(like.scalar_type()).pinned_memory(!block.grads.device().is_cpu()));
  };
  make(staging.grads, block.grads);
  make(staging.params, block.params);
}

void HostUpdate::run(const std::vector<StateBlock>& blocks,
                     const std::function<void(const StoredElements& piece, size_t group)>& update) {
  const std::vector<Piece> pieces = pieces_of(blocks);
  std::future<void> coming[2], going[2];
  const auto fetch = [&](size_t i) {
    const Piece& p = pieces[i];
    if (going[i % 2].valid()) going[i % 2].get();  // wait until piece i - 2 has left this staging buffer
    Staging& staging = staging_[i % 2];
    allocate(staging, *p.block);
    std::vector<Copy> copies{{staging.grads.narrow(0, 0, p.n), p.block->grads.narrow(0, p.begin, p.n)}};
    if (p.block->main.high.defined())
      copies.push_back({staging.params.narrow(0, 0, p.n), p.block->params.narrow(0, p.begin, p.n)});
    coming[i % 2] = copy_in_background(std::move(copies));
  };
  if (!pieces.empty()) fetch(0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& p = pieces[i];
    const Staging& staging = staging_[i % 2];
    coming[i % 2].get();
    if (i + 1 < pieces.size()) fetch(i + 1);
    // fp32 parameters are copied straight from main; others are first cast into the staging buffer by the update. Those
    // in fp8 are made afterwards, by cast_fp8_params.
    const bool low_precision = p.block->params.scalar_type() != at::kFloat;
    const at::Tensor params = staging.params.narrow(0, 0, p.n);
    StoredElements elements{.main = p.block->main.slice(p.begin, p.begin + p.n),
                            .grad = staging.grads.narrow(0, 0, p.n)};
    for (const ops::StoredValues& state : p.block->states)
      elements.states.push_back(state.slice(p.begin, p.begin + p.n));
    if (elements.main.high.defined())
      elements.main.high = params;
    else if (low_precision && !p.block->in_fp8())
      elements.param = params;
    update(elements, p.group);
    if (p.block->in_fp8()) continue;
    going[i % 2] =
        copy_in_background({{p.block->params.narrow(0, p.begin, p.n), low_precision ? params : elements.main.values}});
  }
  for (auto& transfer : going)
    if (transfer.valid()) transfer.get();
}

}  // namespace megalith::optim
