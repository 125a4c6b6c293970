#include "megalith/ops/grouped_gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/ops/cpu_parallel.h"
#include "megalith/ops/tensor_internal.h"

namespace megalith::ops {

namespace {

using at::Tensor;

struct Group {
  int64_t number, first, rows;
};

std::vector<Group> groups_of(const GroupCounts& counts, const Tensor& x, const Tensor& w) {
  check(x.dim() == 2 && w.dim() == 3 && w.size(0) == static_cast<int64_t>(counts.size()),
        "a grouped product of {} with {} and {} counts", shape_text(x), shape_text(w), counts.size());
  std::vector<Group> groups;
  int64_t first = 0;
  for (size_t n = 0; n < counts.size(); ++n) {
    groups.push_back({static_cast<int64_t>(n), first, counts[n]});
    first += counts[n];
  }
  check(first == x.size(0), "groups of {} rows for a tensor of {}", first, x.size(0));
  return groups;
}

// Deals the groups out to threads, the largest first, each to whom has least to do. Empty when one thread would have
// far more than its share: the products are then better cut one by one.
std::vector<std::vector<Group>> deal(std::vector<Group> groups, int64_t rows) {
  const auto threads = static_cast<size_t>(at::in_parallel_region() ? 1 : at::get_num_threads());
  if (threads == 1 || groups.size() < 2 * threads) return {};
  std::ranges::stable_sort(groups, [](const Group& a, const Group& b) { return a.rows > b.rows; });
  std::vector<std::vector<Group>> hands(threads);
  std::vector<int64_t> load(threads, 0);
  for (const Group& group : groups) {
    const auto least = static_cast<size_t>(std::ranges::min_element(load) - load.begin());
    hands[least].push_back(group);
    load[least] += group.rows;
  }
  const int64_t fair = rows / static_cast<int64_t>(threads);
  return std::ranges::max(load) > fair + fair / 4 ? std::vector<std::vector<Group>>{} : hands;
}

// body(group) for every group, on the CPU several at a time where that is faster than several threads for each.
void for_each_group(const GroupCounts& counts, const Tensor& x, const Tensor& w,
                    c10::function_ref<void(const Group&)> body) {
  const std::vector<Group> groups = groups_of(counts, x, w);
  const auto hands = x.is_cpu() ? deal(groups, x.size(0)) : std::vector<std::vector<Group>>{};
  if (hands.empty()) {
    for (const Group& group : groups) body(group);
    return;
  }
  parallel_for(static_cast<int64_t>(hands.size()), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // a thread's own
    for (int64_t hand = begin; hand < end; ++hand)
      for (const Group& group : hands[static_cast<size_t>(hand)]) body(group);
  });
}

// libtorch's grouped kernels: bf16 on CUDA, rows of 16 bytes.
bool has_grouped_kernel(const Tensor& x, const Tensor& w) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.size(0) > 0 && x.size(1) % 8 == 0 && w.size(1) % 8 == 0 &&
         w.size(2) % 8 == 0;
}

// The row behind each group, int32, on the device of x.
Tensor ends_of(const GroupCounts& counts, const Tensor& x) {
  Tensor ends = at::empty({std::ssize(counts)}, at::kInt);
  int64_t end = 0;
  for (size_t n = 0; n < counts.size(); ++n) ends.mutable_data_ptr<int>()[n] = static_cast<int>(end += counts[n]);
  return ends.to(x.device(), /*non_blocking=*/true);
}

// dy_nᵀ x_n of every group in bf16, those of groups without rows zero.
Tensor grouped_outer(const Tensor& dy, const Tensor& x, const GroupCounts& counts) {
  Tensor products = at::_grouped_mm(dy.t(), x, ends_of(counts, x));
  for (size_t n = 0; n < counts.size(); ++n)
    if (counts[n] == 0) products.select(0, static_cast<int64_t>(n)).zero_();
  return products;
}

Tensor multiply(const Tensor& x, const Tensor& w, const GroupCounts& counts, bool transposed) {
  const Tensor rows = x.detach().contiguous(), weights = w.detach();
  check(x.size(1) == w.size(transposed ? 2 : 1), "a grouped product of {} with {}", shape_text(x), shape_text(w));
  if (has_grouped_kernel(rows, weights) && weights.scalar_type() == at::kBFloat16) {
    groups_of(counts, rows, weights);  // checks
    return at::_grouped_mm(rows, transposed ? weights.transpose(1, 2) : weights, ends_of(counts, rows));
  }
  Tensor y = at::empty({x.size(0), w.size(transposed ? 1 : 2)}, x.options());
  for_each_group(counts, rows, weights, [&](const Group& group) {
    if (group.rows == 0) return;
    Tensor out = y.narrow(0, group.first, group.rows);
    const Tensor matrix = weights.select(0, group.number);
    at::mm_out(out, rows.narrow(0, group.first, group.rows), transposed ? matrix.t() : matrix);
  });
  return y;
}

}  // namespace

Tensor grouped_mm_transposed(const Tensor& x, const Tensor& w, const GroupCounts& counts) {
  return multiply(x, w, counts, true);
}

Tensor grouped_mm(const Tensor& x, const Tensor& w, const GroupCounts& counts) { return multiply(x, w, counts, false); }

void grouped_weight_grad(const Tensor& dw, const Tensor& dy, const Tensor& x, const GroupCounts& counts, double beta) {
  const Tensor into = dw.detach(), left = dy.detach().contiguous(), right = x.detach().contiguous();
  if (left.scalar_type() == at::kBFloat16 && has_grouped_kernel(right, into)) {
    groups_of(counts, right, into);  // checks
    const Tensor products = grouped_outer(left, right, counts);
    if (beta == 0)
      into.copy_(products);
    else
      (beta == 1 ? into : into.mul_(beta)).add_(products);
    return;
  }
  for_each_group(counts, right, into, [&](const Group& group) {
    Tensor out = into.select(0, group.number);
    if (group.rows == 0) {
      if (beta == 0) out.zero_();
      return;
    }
    const Tensor a = left.narrow(0, group.first, group.rows).t(), b = right.narrow(0, group.first, group.rows);
    if (out.scalar_type() == b.scalar_type()) {
      at::addmm_out(out, out, a, b, beta, 1);
    } else if (beta == 0) {
      out.copy_(a.mm(b));
    } else {
      out.add_(a.mm(b));
    }
  });
}

}  // namespace megalith::ops
