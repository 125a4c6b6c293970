// The part of a save that overlaps with training: a thread copies this rank's share to the host (from a device on a
// separate stream) and writes it.
//
//   caller    begin | forward, backward ... | finish_copy | update, next steps ...          | poll: finish
//   thread          | queue copies | wait for them        | write, sync                     |
//   stream          | copies -------------->|
//
// The caller blocks only in finish_copy, and there only until the copies are queued (host state: copied).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>

#include "megalith/checkpoint/save_job_internal.h"

namespace megalith::checkpoint {

namespace {

// Copies one tensor; from a device the copy is only queued. For large host tensors memcpy uses stores that bypass the
// cache, which ATen's copy does not, and so leaves the cache to the computation.
void copy_elements(const at::Tensor& to, const at::Tensor& from) {
  if (from.device().is_cpu() && from.is_contiguous())
    std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
  else
    to.copy_(from, /*non_blocking=*/true);
}

}  // namespace

// Each part keeps its own error, so that the steps after a failed one still release the caller and the tensors.
void Saver::Job::write_in_background(at::Tensor& buffer) {
  copies_.begin();
  in_background_ = true;
  thread_ = std::thread([this, &buffer] {
    keep_error([&] {
      copies_.enter();
      copy_share(buffer);
    });
    keep_error([&] { copies_.leave(); });  // even after an error: copies queued before it still read the tensors
    copies_queued_ = true;
    copies_queued_.notify_all();
    keep_error([&] { copies_.wait(); });
    originals_.clear();
    write();
  });
  stalled_seconds_ = seconds_since(start_);
}

// The host waits only until the thread has queued its copies; the device's stream waits for the copies themselves.
void Saver::Job::finish_copy() {
  if (held_back_) return;
  const auto entered = Clock::now();
  copies_queued_.wait(false);
  copies_.hold_back();
  held_back_ = true;
  stalled_seconds_ += seconds_since(entered);
}

// Replaces every tensor that training continues to change by its copy, and drops what other ranks write. Originals are
// kept alive until they are copied: the allocator might otherwise reuse their memory for work on another stream.
void Saver::Job::copy_share(at::Tensor& buffer) {
  constexpr int64_t kAlignment = 64;  // bytes: a cache line, and enough for every dtype
  const at::NoGradGuard no_grad;
  const auto padded = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  int64_t total = 0;
  for (size_t f = 0; f < files_.size(); ++f)
    for (const size_t i : files_[f].mine)
      total += padded(static_cast<int64_t>(request_.tensors[f].held[i].data.nbytes()));
  if (!buffer.defined() || buffer.numel() < total)
    buffer = at::empty({total}, at::TensorOptions().dtype(at::kByte).pinned_memory(context_.device().is_cuda()));
  int64_t at = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> on_host;  // (copy, original); done last, while the device copies
  for (size_t f = 0; f < files_.size(); ++f) {
    std::vector<hf::HeldRectangle>& held = request_.tensors[f].held;
    std::vector<hf::HeldRectangle> copies;
    for (const size_t i : files_[f].mine) {
      const at::Tensor& original = originals_.emplace_back(held[i].data);
      const auto bytes = static_cast<int64_t>(original.nbytes());
      const at::Tensor own = buffer.narrow(0, at, bytes).view(original.scalar_type()).view(original.sizes());
      if (held[i].load)  // made on the copying stream, one after the other: their memory is reused in its order
        copy_elements(own, held[i].load());
      else if (original.device().is_cpu())
        on_host.emplace_back(own, original);
      else
        copy_elements(own, original);
      copies.push_back({held[i].tensor, held[i].offset, own, 0});
      at += padded(bytes);
    }
    held = std::move(copies);
    for (size_t i = 0; i < held.size(); ++i) files_[f].mine[i] = i;
  }
  for (const auto& [own, original] : on_host) copy_elements(own, original);
}

}  // namespace megalith::checkpoint
