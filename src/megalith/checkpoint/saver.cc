// Saver owns at most one job at a time. A save in the foreground is a job on the stack; one in the background stays in
// job_, with the host buffer kept for the next save, until poll() or wait() completes it.
#include "megalith/checkpoint/saver.h"

#include <ATen/ATen.h>

#include <chrono>

#include "megalith/base/error.h"
#include "megalith/checkpoint/save_job_internal.h"

namespace megalith::checkpoint {

Saver::Saver(const parallel::ParallelContext& context) : context_(context) {}
Saver::~Saver() = default;

SaveReport Saver::save(SaveRequest request) {
  check(!busy(), "a save begins while another is in flight");
  Job job(context_, std::move(request));
  job.write();
  return job.finish();
}

void Saver::start(SaveRequest request) {
  check(!busy(), "a save begins while another is in flight");
  auto job = std::make_unique<Job>(context_, std::move(request));
  job->write_in_background(host_copy_);
  job_ = std::move(job);
}

void Saver::finish_copy() {
  if (busy()) job_->finish_copy();
}

std::optional<SaveReport> Saver::poll() {
  check(busy(), "no save is in flight");
  // The minimum over ranks: all complete the save in the same call, as the collectives in finish() need.
  const at::Tensor written = at::tensor({job_->is_written() ? 1 : 0}, at::kInt).to(context_.device());
  context_.world().world().all_reduce(written, comm::ReduceOp::kMin, "checkpoint: is it written");
  if (written.item<int>() == 0) return std::nullopt;
  return wait();
}

// The job leaves job_ first: if finish() throws, the save is abandoned and the next one can start.
SaveReport Saver::wait() {
  check(busy(), "no save is in flight");
  const std::unique_ptr<Job> job = std::move(job_);
  return job->finish();
}

// Bytes of the generators, as opaque tensors: only the same layout can use them again.
TensorFiles rng_files(const parallel::ParallelContext& context, const std::string& state) {
  const int size = context.world().size(), rank = context.rank();
  // Sizes may differ between ranks, and every rank has to plan all tensors alike.
  const auto bytes = static_cast<int64_t>(state.size());
  const at::Tensor sizes = at::empty({size}, at::TensorOptions().dtype(at::kLong).device(context.device()));
  context.world().world().all_gather(sizes, at::tensor({bytes}, at::kLong).to(context.device()), "checkpoint: rng");
  TensorFiles files{.stem = "rng", .tensors = {}, .held = {}};
  const at::Tensor on_host = sizes.cpu();
  for (int r = 0; r < size; ++r)
    files.tensors.push_back({fmt::format("rank-{}", r), hf::Dtype::kU8, {on_host[r].item<int64_t>()}});
  at::Tensor copy = at::empty({bytes}, at::kByte);
  std::memcpy(copy.mutable_data_ptr(), state.data(), state.size());
  files.held.push_back({fmt::format("rank-{}", rank), {0}, std::move(copy), 0});
  return files;
}

}  // namespace megalith::checkpoint
