// From blocks of state to pieces, and from pieces to waits.
//
//   block (one bucket; parameters in reverse order of the forward pass)
//     | layer 2 ...... | layer 1 ...... | layer 0 ...... | embedding |
//     | piece of part 3| piece of part 2| piece of part 1| of part 0 |
//
// Pieces in the queue run in order, so that waiting for one waits for all of the parts before it, too. What only reads
// or writes parameters, gradients or state outside of forward passes calls finish(). Gradients need no wait of their
// own: the last part of a forward pass has waited for everything when backward begins to overwrite them.
#include "megalith/optim/overlap/overlapped_update.h"

#include <ATen/Context.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::optim {

namespace {

using PartOf = std::unordered_map<const nn::Parameter*, size_t>;

// The first part that reads each parameter.
PartOf first_parts(std::span<const ForwardPart> parts) {
  PartOf part_of;
  for (size_t i = 0; i < parts.size(); ++i)
    for (const nn::Parameter* parameter : parts[i].parameters) part_of.try_emplace(parameter, i);
  return part_of;
}

size_t part_of(const nn::Parameter* parameter, const PartOf& parts) {
  const auto found = parts.find(parameter);
  return found == parts.end() ? 0 : found->second;
}

}  // namespace

// Adjacent parameters of one part are one piece, with the padding between and after them.
std::vector<UpdatePiece> update_pieces(std::span<const UpdateBlock> blocks, std::span<const ForwardPart> parts) {
  const PartOf parts_of = first_parts(parts);
  std::vector<UpdatePiece> pieces;
  for (size_t block = 0; block < blocks.size(); ++block) {
    const std::vector<UpdateBlock::Item>& items = blocks[block].items;
    const size_t before = pieces.size();
    for (size_t i = 0; i < items.size(); ++i) {
      const size_t part = part_of(items[i].parameter, parts_of);
      const int64_t end = i + 1 < items.size() ? items[i + 1].begin : blocks[block].numel;
      if (pieces.size() > before && pieces.back().part == part)
        pieces.back().end = end;
      else
        pieces.push_back({.block = block, .begin = items[i].begin, .end = end, .part = part});
    }
  }
  std::ranges::stable_sort(pieces, {}, &UpdatePiece::part);
  return pieces;
}

OverlappedUpdate::OverlappedUpdate(std::span<const UpdateBlock> blocks, std::vector<ForwardPart> parts,
                                   const OverlapSettings& settings, std::unique_ptr<SideQueue> queue)
    : parts_(std::move(parts)),
      settings_(settings),
      pieces_(update_pieces(blocks, parts_)),
      side_seconds_(parts_.size()),
      part_of_(first_parts(parts_)),
      queue_(std::move(queue)) {
  check(queue_ != nullptr && !parts_.empty(), "an update beside the forward pass needs a queue and parts of a model");
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const UpdatePiece& piece = pieces_[i];
    const UpdateBlock& block = blocks[piece.block];
    const double rate = block.fp32 ? settings_.bytes_per_second : settings_.stored_bytes_per_second;
    side_seconds_[piece.part] += block.bytes_per_element * static_cast<double>(piece.end - piece.begin) / rate;
    for (const UpdateBlock::Item& item : block.items)
      if (item.begin >= piece.begin && item.begin < piece.end) last_piece_of_[item.parameter] = i;
  }
  for (const ForwardPart& part : parts_)
    for (const nn::Parameter* parameter : part.parameters)
      if (parameter->plans != nullptr) plans_ = parameter->plans;
}

OverlappedUpdate::~OverlappedUpdate() {
  try {
    finish();
  } catch (const std::exception&) {
    // A device that has failed has already been reported by the code that used it; destructors must not throw.
  }
}

OverlapPlan OverlappedUpdate::plan(int64_t tokens) const {
  if (tokens == 0) return {.first = parts_.size(), .spared = 0};
  std::vector<PartWork> work;
  for (size_t i = 0; i < parts_.size(); ++i)
    work.push_back(
        {.side_seconds = side_seconds_[i],
         .forward_seconds = parts_[i].flops_per_token * static_cast<double>(tokens) / settings_.flops_per_second});
  return plan_overlap(work, settings_.limits);
}

void OverlappedUpdate::run(int64_t tokens, const Update& update) {
  finish();
  const OverlapPlan plan = this->plan(tokens);
  first_piece_ = 0;
  for (; first_piece_ < pieces_.size() && pieces_[first_piece_].part < plan.first; ++first_piece_)
    update(pieces_[first_piece_], /*multiprocessors=*/0);
  waited_ = 0;
  beside_ = pieces_.size() - first_piece_;
  if (beside_ == 0) return;
  held_ = update;
  spared_parts_ = settings_.products_spare ? plan.spared : 0;
  queue_->begin();
  for (size_t i = first_piece_; i < pieces_.size(); ++i)
    queue_->add([this, i] { held_(pieces_[i], settings_.multiprocessors); });
}

void OverlappedUpdate::wait_for(std::span<nn::Parameter* const> parameters) {
  if (!held_) return;
  size_t needed = 0, part = 0;  // pieces of the queue; the part that these parameters are
  for (const nn::Parameter* parameter : parameters) {
    if (const auto piece = last_piece_of_.find(parameter); piece != last_piece_of_.end())
      needed = std::max(needed, piece->second + 1);
    part = std::max(part, part_of(parameter, part_of_));
  }
  if (part + 1 == parts_.size()) return finish();  // backward follows, and overwrites gradients
  needed = std::min(beside_, needed - std::min(needed, first_piece_));
  if (needed > waited_) {
    queue_->wait_for(needed - 1);
    waited_ = needed;
  }
  spare(part < spared_parts_);
}

void OverlappedUpdate::finish() {
  if (!held_) return;
  spare(false);
  if (waited_ < beside_) queue_->wait_for(beside_ - 1);
  waited_ = beside_;
  held_ = nullptr;
}

// Products that do not go to cuBLASLt, such as those of experts, ask libtorch's context.
void OverlappedUpdate::spare(bool on) {
  if (on == room_.has_value()) return;
  if (on)
    room_.emplace(plans_, settings_.multiprocessors);
  else
    room_.reset();
  if (plans_ == nullptr) return;
  at::globalContext()._setSMCarveout_EXPERIMENTAL(on ? std::optional<int32_t>(settings_.multiprocessors)
                                                     : std::nullopt);
}

}  // namespace megalith::optim
