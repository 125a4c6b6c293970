// Cuts attention on the CPU into tasks for the flash kernel: a sequence, a key/value head and some query blocks of it.
// Threads take the tasks from a shared counter, the largest first. The result of a task does not depend on the thread
// that runs it. If there are fewer pairs of sequence and head than threads, query blocks are cut further; then several
// tasks contribute to the same keys, and each part writes fp32 partial sums of their gradients, which are added at the
// end. So results depend on the number of threads but not on timing.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

#include "megalith/ops/attention/attention_flash_internal.h"
#include "megalith/ops/attention/attention_internal.h"
#include "megalith/ops/kernel/cpu_parallel.h"

namespace megalith::ops {

namespace {

// A unit that one thread runs from beginning to end.
struct Task {
  int64_t sequence, head;  // head is a key/value head
  int64_t part;            // number of this part of the sequence's query blocks
  FlashShape shape;
  int64_t begin, end;  // query blocks of the part
  // An estimate of the work, without masks.
  int64_t products() const {
    return std::min(shape.queries, kFlashQueries) * (end - begin) * shape.keys * (shape.d + shape.e);
  }
};

FlashShape shape_of(const AttentionCall& call, int64_t sequence) {
  const auto& q = call.queries.cumulative();
  const auto& k = call.keys.cumulative();
  const auto s = static_cast<size_t>(sequence);
  return {.queries = q[s + 1] - q[s],
          .keys = k[s + 1] - k[s],
          .group = call.group(),
          .d = call.q.size(2),
          .e = call.v.size(2),
          .causal = call.options.causal,
          .window = call.options.window,
          .scale = static_cast<float>(call.options.scale)};
}

// Returns the number of parts that the query blocks of a sequence are cut into: one if sequences and heads alone keep
// all threads busy, otherwise enough for two tasks per thread.
int64_t parts_of(const AttentionCall& call) {
  const int64_t pairs = call.queries.sequences() * call.k.size(1);
  const int64_t wanted = at::in_parallel_region() || at::get_num_threads() == 1 ? 1 : 2 * at::get_num_threads();
  return pairs == 0 || pairs >= wanted ? 1 : (wanted + pairs - 1) / pairs;
}

// Returns the tasks, the largest first, so that no thread is left alone with one at the end.
std::vector<Task> make_tasks(const AttentionCall& call, int64_t parts) {
  std::vector<Task> tasks;
  for (int64_t sequence = 0; sequence < call.queries.sequences(); ++sequence) {
    const FlashShape shape = shape_of(call, sequence);
    for (int64_t head = 0; head < call.k.size(1); ++head) {
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t begin = part * shape.blocks() / parts, end = (part + 1) * shape.blocks() / parts;
        if (begin < end) tasks.push_back({sequence, head, part, shape, begin, end});
      }
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return a.products() > b.products(); });
  return tasks;
}

// Runs the tasks on all threads; each takes the next one when it has finished one. `scratch_floats` is the need of the
// task that needs most.
void run_tasks(const std::vector<Task>& tasks, int64_t scratch_floats,
               c10::function_ref<void(const Task&, float* scratch)> run) {
  constexpr int64_t kGrainProducts = 1 << 18;  // fewer are not worth waking a thread
  int64_t products = 1;
  for (const Task& task : tasks) products += task.products();
  const auto count = static_cast<int64_t>(tasks.size());
  const int64_t threads = parallel_parts(count, count * kGrainProducts / products);
  std::atomic<size_t> next = 0;
  parallel_for_parts(threads, threads, [&](int64_t /*part*/, int64_t /*begin*/, int64_t /*end*/) {
    const at::Tensor scratch = at::empty({scratch_floats}, at::kFloat);
    for (size_t i = next++; i < tasks.size(); i = next++) run(tasks[i], scratch.mutable_data_ptr<float>());
  });
}

// Return the heads of x [t, heads, size] from `token` and `head` on.
template <typename T>
FlashHeads<const T> read(const at::Tensor& x, int64_t token, int64_t head) {
  return {x.const_data_ptr<T>() + token * x.stride(0) + head * x.stride(1), x.stride(0), x.stride(1)};
}
template <typename T>
FlashHeads<T> write(const at::Tensor& x, int64_t token, int64_t head) {
  return {x.mutable_data_ptr<T>() + token * x.stride(0) + head * x.stride(1), x.stride(0), x.stride(1)};
}

// The first tokens and the first query head of a task.
struct Place {
  int64_t query, key;  // first tokens
  int64_t head;        // first query head
  Place(const AttentionCall& call, const Task& task)
      : query(call.queries.cumulative()[static_cast<size_t>(task.sequence)]),
        key(call.keys.cumulative()[static_cast<size_t>(task.sequence)]),
        head(task.head * call.group()) {}
};

// Returns the shape of the sequence with the most keys, which needs the most scratch memory.
FlashShape longest_shape(const AttentionCall& call) {
  FlashShape shape = shape_of(call, 0);
  shape.keys = call.keys.longest();
  return shape;
}

// Tasks write disjoint parts of out and log_sum_exp: no sums, no order.
template <typename T>
void run_forward(const AttentionCall& call, const KernelResult& result) {
  const at::Tensor stats = result.log_sum_exp.t();  // [t, n]
  const auto run = [&](const Task& task, float* scratch) {
    const Place at(call, task);
    flash_forward<T>({.shape = task.shape,
                      .q = read<T>(call.q, at.query, at.head),
                      .k = read<T>(call.k, at.key, task.head),
                      .v = read<T>(call.v, at.key, task.head),
                      .out = write<T>(result.out, at.query, at.head),
                      .log_sum_exp = write<float>(stats, at.query, at.head)},
                     task.begin, task.end, scratch);
  };
  run_tasks(make_tasks(call, parts_of(call)), flash_forward_scratch(longest_shape(call)), run);
}

// Tasks of one sequence and head add to the same grad_k and grad_v: with several parts each writes its own fp32 sums,
// and the parts are added in order at the end.
template <typename T>
void run_backward(const AttentionCall& call, const at::Tensor& grad_out, const KernelResult& result,
                  AttentionGrads& grads) {
  const at::Tensor stats = result.log_sum_exp.t();  // [t, n]
  const int64_t parts = parts_of(call);
  at::Tensor partial_k, partial_v;  // [parts, u, g, d], fp32
  if (parts > 1) {
    partial_k = at::zeros({parts, call.k.size(0), call.k.size(1), call.k.size(2)}, at::kFloat);
    partial_v = at::zeros({parts, call.v.size(0), call.v.size(1), call.v.size(2)}, at::kFloat);
  }
  const auto run = [&](const Task& task, float* scratch) {
    const Place at(call, task);
    FlashBackward<T> backward{.shape = task.shape,
                              .q = read<T>(call.q, at.query, at.head),
                              .out = read<T>(result.out, at.query, at.head),
                              .grad_out = read<T>(grad_out, at.query, at.head),
                              .k = read<T>(call.k, at.key, task.head),
                              .v = read<T>(call.v, at.key, task.head),
                              .log_sum_exp = read<float>(stats, at.query, at.head),
                              .grad_q = write<T>(grads.q, at.query, at.head),
                              .grad_k = write<T>(grads.k, at.key, task.head),
                              .grad_v = write<T>(grads.v, at.key, task.head)};
    if (parts > 1) {
      backward.partial_k = write<float>(partial_k.select(0, task.part), at.key, task.head);
      backward.partial_v = write<float>(partial_v.select(0, task.part), at.key, task.head);
    }
    flash_backward<T>(backward, task.begin, task.end, scratch);
  };
  run_tasks(make_tasks(call, parts), flash_backward_scratch(longest_shape(call)), run);
  if (parts > 1) {
    grads.k.copy_(partial_k.sum(0));
    grads.v.copy_(partial_v.sum(0));
  }
}

}  // namespace

KernelResult attention_flash_forward(const AttentionCall& call) {
  const int64_t t = call.q.size(0), n = call.q.size(1);
  KernelResult result{.out = at::empty({t, n, call.v.size(2)}, call.q.options()),
                      .log_sum_exp = at::empty({n, t}, call.q.options().dtype(at::kFloat))};
  if (t == 0) return result;
  AT_DISPATCH_SWITCH(call.q.scalar_type(), "attention",
                     AT_DISPATCH_CASE(at::kFloat, [&] { run_forward<float>(call, result); })
                         AT_DISPATCH_CASE(at::kBFloat16, [&] { run_forward<at::BFloat16>(call, result); })
                             AT_DISPATCH_CASE(at::kHalf, [&] { run_forward<at::Half>(call, result); }));
  return result;
}

AttentionGrads attention_flash_backward(const AttentionCall& call, const at::Tensor& grad_out,
                                        const KernelResult& result) {
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  AttentionGrads grads{like(call.q), like(call.k), like(call.v)};
  if (call.q.size(0) == 0) return grads;
  const at::Tensor grad = grad_out.stride(2) == 1 ? grad_out : grad_out.contiguous();
  AT_DISPATCH_SWITCH(call.q.scalar_type(), "attention",
                     AT_DISPATCH_CASE(at::kFloat, [&] { run_backward<float>(call, grad, result, grads); })
                         AT_DISPATCH_CASE(at::kBFloat16, [&] { run_backward<at::BFloat16>(call, grad, result, grads); })
                             AT_DISPATCH_CASE(at::kHalf, [&] { run_backward<at::Half>(call, grad, result, grads); }));
  return grads;
}

}  // namespace megalith::ops
