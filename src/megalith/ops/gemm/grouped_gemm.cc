// Grouped GEMM in two ways. bf16 on CUDA takes libtorch's grouped kernels, which read the ends of groups on the device:
// one launch, and the host does not wait for the counts. Everything else multiplies group by group. On the CPU, groups
// are then distributed over the threads, each group on one thread, if that balances well; otherwise all threads share
// each product. Many small products on one thread each beat small products on many threads.
//
//   rows     | group 0 | group 1 |   | group 3 |         x [r, i], sorted by group; groups may be empty
//   ends       n₀        n₀+n₁         ...               int32 [g], on the device
//   y        x₀ w₀ᵀ    x₁ w₁ᵀ        x₃ w₃ᵀ              and dw[g] = dy_gᵀ x_g in backward
#include "megalith/ops/gemm/grouped_gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/grouped_gemm_internal.h"
#include "megalith/ops/kernel/cpu_parallel.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

namespace {

using at::Tensor;

// A group and its rows [first, first + rows).
struct Group {
  int64_t number, first, rows;
};

void check_shapes(const GroupCounts& counts, const Tensor& x, const Tensor& w) {
  check(x.dim() == 2 && w.dim() == 3 && w.size(0) == counts.groups(),
        "a grouped product got rows {} and matrices {} for {} groups; it takes [r, i] and one matrix per group",
        shape_text(x), shape_text(w), counts.groups());
  counts.check_rows(x.size(0));
}

// Returns all groups, empty ones included. For counts on the device this waits for it.
std::vector<Group> groups_of(const GroupCounts& counts, int64_t all) {
  std::vector<Group> groups;
  int64_t first = 0;
  for (const int64_t rows : counts.on_host()) {
    groups.push_back({std::ssize(groups), first, rows});
    first += rows;
  }
  counts.check_rows(all);  // those of the device are known only now
  return groups;
}

// Distributes the groups over the threads: the largest first, each to the thread with the least work. Returns empty if
// a thread would get more than 1.25 times its share: then it is better to split each product over all threads.
std::vector<std::vector<Group>> assign_to_threads(std::vector<Group> groups, int64_t rows) {
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

// Calls body(group) for every group, on the CPU several at a time if assign_to_threads() finds a balance.
void for_each_group(const GroupCounts& counts, const Tensor& x, c10::function_ref<void(const Group&)> body) {
  const std::vector<Group> groups = groups_of(counts, x.size(0));
  const auto hands = x.is_cpu() ? assign_to_threads(groups, x.size(0)) : std::vector<std::vector<Group>>{};
  if (hands.empty()) {
    for (const Group& group : groups) body(group);
    return;
  }
  parallel_for(static_cast<int64_t>(hands.size()), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // the mode is per thread
    for (int64_t hand = begin; hand < end; ++hand)
      for (const Group& group : hands[static_cast<size_t>(hand)]) body(group);
  });
}

// Whether libtorch's grouped kernels can take it: bf16 on CUDA, rows that are multiples of 16 bytes.
bool has_grouped_kernel(const Tensor& x, const Tensor& w) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.size(0) > 0 && x.size(1) % 8 == 0 && w.size(1) % 8 == 0 &&
         w.size(2) % 8 == 0;
}

// y = x · w, or x · wᵀ per group if `transposed`; the public products are its two forms.
Tensor multiply(const Tensor& x, const Tensor& w, const GroupCounts& counts, bool transposed) {
  const Tensor rows = x.detach().contiguous(), weights = w.detach();
  check(x.size(1) == w.size(transposed ? 2 : 1),
        "a grouped product got rows {} and matrices {}; the dimensions that are summed over differ", shape_text(x),
        shape_text(w));
  check_shapes(counts, rows, weights);
  if (has_grouped_kernel(rows, weights) && weights.scalar_type() == at::kBFloat16)
    return at::_grouped_mm(rows, transposed ? weights.transpose(1, 2) : weights, counts.ends(rows.device()));
  Tensor y = at::empty({x.size(0), w.size(transposed ? 1 : 2)}, x.options());
  for_each_group(counts, rows, [&](const Group& group) {
    if (group.rows == 0) return;
    Tensor out = y.narrow(0, group.first, group.rows);
    const Tensor matrix = weights.select(0, group.number);
    at::mm_out(out, rows.narrow(0, group.first, group.rows), transposed ? matrix.t() : matrix);
  });
  return y;
}

}  // namespace

GroupCounts::GroupCounts(std::vector<int64_t> counts) : known_(std::make_shared<Known>(std::move(counts), Tensor())) {}

GroupCounts GroupCounts::on_device(Tensor ends) {
  check(ends.dim() == 1 && ends.scalar_type() == at::kInt, "the ends of groups are int32 [g]; these are {} of {}",
        c10::toString(ends.scalar_type()), shape_text(ends));
  GroupCounts counts;
  counts.known_ = std::make_shared<Known>(std::nullopt, std::move(ends));
  return counts;
}

GroupCounts GroupCounts::on_both(std::vector<int64_t> counts, Tensor ends) {
  GroupCounts both = on_device(std::move(ends));
  check(std::ssize(counts) == both.groups(), "{} counts and {} ends of groups", counts.size(), both.groups());
  both.known_->counts = std::move(counts);
  return both;
}

int64_t GroupCounts::groups() const { return known_->counts ? std::ssize(*known_->counts) : known_->ends.size(0); }

const std::vector<int64_t>& GroupCounts::on_host() const {
  if (!known_->counts) {
    // Counts are the differences of the ends.
    const Tensor ends = known_->ends.is_cpu() ? known_->ends.contiguous() : HostTensor(known_->ends).value();
    const auto* end = ends.const_data_ptr<int>();
    known_->counts.emplace(end, end + ends.numel());
    std::adjacent_difference(known_->counts->begin(), known_->counts->end(), known_->counts->begin());
  }
  return *known_->counts;
}

const Tensor& GroupCounts::ends(at::Device device) const {
  if (!known_->ends.defined()) {
    Tensor ends = at::empty({groups()}, at::kInt);
    std::partial_sum(known_->counts->begin(), known_->counts->end(), ends.mutable_data_ptr<int>());
    known_->ends = to_device(ends, device);
  }
  check(known_->ends.device() == device, "the counts of groups are on {} but were requested on {}",
        known_->ends.device().str(), device.str());
  return known_->ends;
}

void GroupCounts::check_rows(int64_t rows) const {
  if (!known_->counts) return;
  const int64_t sum = std::accumulate(known_->counts->begin(), known_->counts->end(), int64_t{0});
  check(sum == rows, "the groups have {} rows in all, but the tensor has {}", sum, rows);
}

Tensor grouped_mm_transposed(const Tensor& x, const Tensor& w, const GroupCounts& counts) {
  return multiply(x, w, counts, true);
}

Tensor grouped_mm(const Tensor& x, const Tensor& w, const GroupCounts& counts) { return multiply(x, w, counts, false); }

void grouped_weight_grad(const Tensor& dw, const Tensor& dy, const Tensor& x, const GroupCounts& counts, double beta) {
  const Tensor into = dw.detach(), left = dy.detach().contiguous(), right = x.detach().contiguous();
  check_shapes(counts, right, into);
  if (left.scalar_type() == at::kBFloat16 && has_grouped_kernel(right, into)) {
    add_group_products(into, at::_grouped_mm(left.t(), right, counts.ends(right.device())), counts, beta);
    return;
  }
  for_each_group(counts, right, [&](const Group& group) {
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

void add_group_products(const Tensor& dw, const Tensor& products, const GroupCounts& counts, double beta) {
  const Tensor& ends = counts.ends(products.device());
  if constexpr (kCudaKernels) {
    const int64_t elements = dw.size(1) * dw.size(2);
    if (on_cuda_kernel(dw) && dw.is_contiguous() && products.is_contiguous() &&
        products.scalar_type() == at::kBFloat16 && elements % 8 == 0) {
      add_group_products_cuda({dw.scalar_type(), dw.size(0), elements, beta}, products.const_data_ptr(),
                              ends.const_data_ptr<int>(), dw.mutable_data_ptr(), stream_of(dw));
      return;
    }
  }
  // Without the kernel: products of empty groups are zeroed, since libtorch leaves them uninitialized.
  const Tensor before = at::constant_pad_nd(ends, {1, -1});
  products.masked_fill_(ends.eq(before).view({-1, 1, 1}), 0);
  if (beta == 0)
    dw.copy_(products);
  else
    (beta == 1 ? dw : dw.mul_(beta)).add_(products);
}

}  // namespace megalith::ops
