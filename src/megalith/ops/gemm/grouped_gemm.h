// Grouped GEMM: products of groups of rows with one matrix each, that is the linear layers of all experts of a rank in
// one call.
//
// Legend: g groups, r rows, i and o columns. The rows of a group are consecutive, groups are in order, and any group
// may be empty. Without autograd: for use inside functions with their own backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

namespace megalith::ops {

// The number of rows of each group, r in all. Known to the host, or only to the device of the rows: products in bf16 on
// CUDA then read it there, and the host does not wait. Copies share their state. Not thread-safe.
class GroupCounts {
 public:
  // Counts known to the host, one per group; none by default.
  GroupCounts() : GroupCounts(std::vector<int64_t>{}) {}
  GroupCounts(std::vector<int64_t> counts);
  GroupCounts(std::initializer_list<int64_t> counts) : GroupCounts(std::vector<int64_t>(counts)) {}
  // From `ends`, int32 [g]: one past the last row of each group. The caller guarantees that the last of them is r.
  static GroupCounts on_device(at::Tensor ends);
  // The same where the host knows the counts, too.
  static GroupCounts on_both(std::vector<int64_t> counts, at::Tensor ends);

  int64_t groups() const;
  // Returns the counts; waits for the device, once, if only it knows them.
  const std::vector<int64_t>& on_host() const;
  // Returns int32 [g] on `device`, one past the last row of each group, without waiting.
  const at::Tensor& ends(at::Device device) const;
  // Throws InternalError if the host already knows that the counts do not add up to `rows`.
  void check_rows(int64_t rows) const;

 private:
  // Either form; the other one is added when it is first requested.
  struct Known {
    std::optional<std::vector<int64_t>> counts;
    at::Tensor ends;  // undefined until requested
  };
  std::shared_ptr<Known> known_;
};

// Returns x_n w_nᵀ of every group n: x [r, i], w [g, o, i] -> [r, o].
at::Tensor grouped_mm_transposed(const at::Tensor& x, const at::Tensor& w, const GroupCounts& counts);
// Returns x_n w_n of every group n: x [r, o], w [g, o, i] -> [r, i].
at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& w, const GroupCounts& counts);
// Computes dw_n = beta · dw_n + dy_nᵀ x_n with dy [r, o], x [r, i] and dw [g, o, i] in their dtype or fp32. A group
// without rows keeps beta · dw_n; with beta = 0 it becomes zero, even if it held NaN.
void grouped_weight_grad(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const GroupCounts& counts,
                         double beta);
// The last step of it for products [g, o, i] in bf16: dw_n = beta · dw_n + products_n. Ignores the product of a group
// without rows, which may be uninitialized. May overwrite `products`.
void add_group_products(const at::Tensor& dw, const at::Tensor& products, const GroupCounts& counts, double beta);

}  // namespace megalith::ops
