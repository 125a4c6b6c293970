// Products of groups of rows with a matrix each: the linear layers of all experts of a rank in one call.
//
// Legend: g groups, r rows, i and o columns. Rows of a group stand together, groups in order; any group may be empty.
// Without autograd: for use inside of functions with a backward of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

namespace megalith::ops {

// How many rows each group has, r in all. The host knows it, or the device of the rows alone: products in bf16 on CUDA
// then take it from there, and nobody waits. Copies share what they know. One thread at a time.
class GroupCounts {
 public:
  GroupCounts() : GroupCounts(std::vector<int64_t>{}) {}
  GroupCounts(std::vector<int64_t> counts);
  GroupCounts(std::initializer_list<int64_t> counts) : GroupCounts(std::vector<int64_t>(counts)) {}
  // `ends` int32 [g]: the row behind each group. The caller answers for the last of them being r.
  static GroupCounts on_device(at::Tensor ends);

  int64_t groups() const;
  // Waits for the device, once, where only that knows them.
  const std::vector<int64_t>& on_host() const;
  // int32 [g], on `device`: the row behind each group. No wait.
  const at::Tensor& ends(at::Device device) const;
  // Throws InternalError where the host knows already that they are not those of `rows` rows.
  void check_rows(int64_t rows) const;

 private:
  struct Known {
    std::optional<std::vector<int64_t>> counts;
    at::Tensor ends;  // undefined: not asked for yet
  };
  std::shared_ptr<Known> known_;
};

// x [r, i], w [g, o, i] -> x_n w_nᵀ of every group: [r, o].
at::Tensor grouped_mm_transposed(const at::Tensor& x, const at::Tensor& w, const GroupCounts& counts);
// x [r, o], w [g, o, i] -> x_n w_n of every group: [r, i].
at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& w, const GroupCounts& counts);
// dw_n = beta · dw_n + dy_nᵀ x_n; dy [r, o], x [r, i], dw [g, o, i] of their dtype or fp32. A group without rows keeps
// beta · dw_n: with beta 0 it becomes zero, whatever was there.
void grouped_weight_grad(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const GroupCounts& counts,
                         double beta);
// The last step of it where the products come in bf16, [g, o, i]: dw_n = beta · dw_n + products_n. A group without rows
// has no product, whatever lies there. May overwrite `products`.
void add_group_products(const at::Tensor& dw, const at::Tensor& products, const GroupCounts& counts, double beta);

}  // namespace megalith::ops
