// Dealing is arithmetic on the host, from grids that every rank has. Gathering pads, because collectives move equal
// blocks; the padding is at most what the largest image exceeds a fair share by.
//
// Rows are placed by index and mask on tensors of fixed size: the number of visual tokens in a slice is known only on
// the device, and asking for it would make the host wait.
#include "megalith/nn/vision/image_share.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Returns the media of every rank, ascending.
std::vector<std::vector<size_t>> media_of_ranks(const std::vector<MediumSize>& sizes, int ranks) {
  std::vector<size_t> by_size(sizes.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::ranges::stable_sort(by_size, [&](size_t a, size_t b) { return sizes[a].work > sizes[b].work; });
  std::vector<int64_t> work(static_cast<size_t>(ranks), 0);
  std::vector<std::vector<size_t>> media(static_cast<size_t>(ranks));
  for (const size_t medium : by_size) {
    const auto least = static_cast<size_t>(std::ranges::min_element(work) - work.begin());
    work[least] += sizes[medium].work;
    media[least].push_back(medium);
  }
  for (auto& share : media) std::ranges::sort(share);
  return media;
}

struct GatherImageRows : Function<GatherImageRows> {
  struct State {
    ImageGroups groups;
    int64_t rows;
  };
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& own, int64_t padded_rows, const State& state) {
    ops::save_state(ctx, state);
    auto shape = own.sizes().vec();
    shape[0] = padded_rows;
    at::Tensor block = own;
    if (own.size(0) < padded_rows) {
      block = at::zeros(shape, own.options());
      block.narrow(0, 0, own.size(0)).copy_(own);
    }
    block = all_gather_rows(block, state.groups.tp, "image rows over tp");
    return all_gather_rows(block, state.groups.cp, "image rows over cp");
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& [groups, rows] = ops::saved_state<State>(ctx);
    at::Tensor grad = reduce_scatter_rows(grads[0], groups.cp, "image rows over cp backward");
    if (groups.tokens_split_over_tp) {
      grad = reduce_scatter_rows(grad, groups.tp, "image rows over tp backward");
    } else {
      const int64_t block = grad.size(0) / groups.tp.size();
      grad = grad.narrow(0, block * groups.tp.rank(), block);
    }
    return {grad.narrow(0, 0, rows).contiguous(), {}, {}};
  }
};

// Returns the gradient of `values` [m, h]: dy[i] added to row which[i]. Other tokens add zeros to rows that differ from
// each other, so that no row gets many additions.
at::Tensor sums_of_rows(const at::Tensor& dy, const at::Tensor& which, int64_t m) {
  const at::Tensor elsewhere = which < 0;
  const at::Tensor spread = at::arange(which.size(0), which.options()).remainder(m);
  at::Tensor sums = at::zeros({m, dy.size(1)}, dy.options());
  return sums.index_add_(0, at::where(elsewhere, spread, which), dy.masked_fill(elsewhere.unsqueeze(1), 0));
}

struct PlaceRows : Function<PlaceRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& values,
                            const at::Tensor& which, bool add) {
    ctx->save_for_backward({which});
    ctx->saved_data["add"] = add;
    ctx->saved_data["rows"] = values.size(0);
    const at::Tensor text = (which < 0).unsqueeze(1);
    const at::Tensor rows = values.index_select(0, which.clamp_min(0)).to(x.scalar_type());
    return add ? x + rows.masked_fill(text, 0) : at::where(text, x, rows);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor which = ctx->get_saved_variables()[0];
    at::Tensor dx = grads[0], dvalues;
    if (!ctx->saved_data["add"].toBool() && ctx->needs_input_grad(0)) dx = dx.masked_fill((which >= 0).unsqueeze(1), 0);
    if (ctx->needs_input_grad(1)) dvalues = sums_of_rows(grads[0], which, ctx->saved_data["rows"].toInt());
    return {dx, dvalues, {}, {}};
  }
};

at::Tensor place_rows(const at::Tensor& x, const at::Tensor& values, const at::Tensor& which, bool add) {
  check(x.dim() == 2 && values.dim() == 2 && x.size(1) == values.size(1) && which.dim() == 1 &&
            which.size(0) == x.size(0) && values.size(0) > 0,
        "{} row numbers and {} rows cannot be placed in {} tokens", which.numel(), values.size(0), x.size(0));
  return PlaceRows::apply(x, values, which, add);
}

}  // namespace

MediaShare deal_media(const std::vector<MediumSize>& sizes, int ranks, int rank) {
  const auto media = media_of_ranks(sizes, ranks);
  MediaShare share{.media = media[static_cast<size_t>(rank)]};
  for (const auto& others : media) {
    int64_t rows = 0;
    for (const size_t medium : others) rows += sizes[medium].rows;
    share.padded_rows = std::max(share.padded_rows, rows);
  }
  for (const size_t medium : share.media) share.rows += sizes[medium].rows;
  // First the start of every medium among the gathered rows, then its rows in the order of the micro-batch.
  std::vector<int64_t> start(sizes.size());
  for (size_t r = 0; r < media.size(); ++r) {
    int64_t next = static_cast<int64_t>(r) * share.padded_rows;
    for (const size_t medium : media[r]) {
      start[medium] = next;
      next += sizes[medium].rows;
    }
  }
  for (size_t medium = 0; medium < sizes.size(); ++medium)
    for (int64_t row = 0; row < sizes[medium].rows; ++row) share.place.push_back(start[medium] + row);
  return share;
}

ImageShare deal_images(const std::vector<ImageGrid>& grids, int64_t merged, int ranks, int rank) {
  std::vector<MediumSize> sizes;
  for (const ImageGrid& grid : grids) sizes.push_back({grid.patches(), grid.patches() / merged});
  ImageShare share{deal_media(sizes, ranks, rank)};
  for (const size_t image : share.media) share.grids.push_back(grids[image]);
  return share;
}

at::Tensor own_input(const at::Tensor& rows, const std::vector<int64_t>& rows_of_media, const MediaShare& share) {
  if (share.media.size() == rows_of_media.size()) return rows;
  std::vector<at::Tensor> own;
  size_t next = 0;
  int64_t first = 0;
  for (size_t medium = 0; medium < rows_of_media.size(); first += rows_of_media[medium++])
    if (next < share.media.size() && share.media[next] == medium) {
      own.push_back(rows.narrow(0, first, rows_of_media[medium]));
      ++next;
    }
  return own.empty() ? rows.narrow(0, 0, 0) : at::cat(own);
}

at::Tensor own_pixels(const at::Tensor& pixels, const std::vector<ImageGrid>& grids, const ImageShare& share) {
  std::vector<int64_t> patches;
  for (const ImageGrid& grid : grids) patches.push_back(grid.patches());
  return own_input(pixels, patches, share);
}

at::Tensor gather_image_rows(const at::Tensor& own, const MediaShare& share, const ImageGroups& groups) {
  if (groups.ranks() == 1) return own;
  return GatherImageRows::apply(own, share.padded_rows, GatherImageRows::State{groups, share.rows});
}

at::Tensor replace_rows(const at::Tensor& x, const at::Tensor& values, const at::Tensor& which) {
  return place_rows(x, values, which, /*add=*/false);
}

at::Tensor add_rows(const at::Tensor& x, const at::Tensor& values, const at::Tensor& which) {
  return place_rows(x, values, which, /*add=*/true);
}

}  // namespace megalith::nn
