// The exchange of a round. A message between a rank and an owner has, one after another, the stretches of the owner's
// matrices that lie in the rank's shard: both sides know them from the layout, so nothing but values travels. The
// results take the same way back, in the same buffers.
//
//   at rank r      sent      | to owner 0: stretches of its matrices | to owner 1 | …
//   at owner o     received  | from rank 0: stretches of o's matrices | from rank 1 | …
#include "megalith/optim/matrix_update.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"

namespace megalith::optim {

using config::MuonTpMode;
using layout::GroupKind;

MatrixUpdate::MatrixUpdate(std::shared_ptr<const Muon> muon, const ParamBuffer& buffer,
                           const parallel::ParallelContext& context, int64_t round_elements)
    : muon_(std::move(muon)),
      buffer_(buffer),
      tp_(buffer.parameters()[0]->spec.expert ? context.etp() : context.tp()),
      matrices_(matrices_of(buffer, !muon_->settings().split_qkv)) {
  std::vector<MatrixCost> costs;
  for (const Matrix& m : matrices_) {
    const bool equal =
        m.split < 0 || (m.split == 0 ? m.rows * tp_.size() == m.whole_rows : m.columns * tp_.size() == m.whole_columns);
    check<ConfigError>(equal,
                       "{}: its {} x {} elements are not in equal blocks on the {} tensor-parallel ranks, which"
                       " optimizer muon needs; use another tensor_model_parallel_size, or optimizer adam",
                       m.parameter->spec.name, m.whole_rows, m.whole_columns, tp_.size());
    costs.push_back(cost_of(m));
  }
  const ReduceGroups& groups = buffer_.groups();
  rounds_ = plan_rounds(costs, groups.sharded ? groups.shards.size() : 1, round_elements);
}

MatrixCost MatrixUpdate::cost_of(const Matrix& m) const {
  const MuonTpMode mode = m.split < 0 ? MuonTpMode::kBlockwise : muon_->settings().tp_mode;
  const auto flop = [](int64_t rows, int64_t columns) {
    return ops::newton_schulz_flop(static_cast<double>(std::min(rows, columns)),
                                   static_cast<double>(std::max(rows, columns)));
  };
  if (mode == MuonTpMode::kBlockwise) return {flop(m.rows, m.columns), m.numel()};
  if (mode == MuonTpMode::kDuplicated) return {flop(m.whole_rows, m.whole_columns), m.numel()};
  const int64_t side = m.split == 0 ? m.columns : m.rows;
  return {ops::newton_schulz_flop(static_cast<double>(side), static_cast<double>(m.numel() / side)), m.numel()};
}

// Empty where the rank has none of it.
MatrixUpdate::Stretch MatrixUpdate::stretch(int matrix, int rank) const {
  const Matrix& m = matrices_[static_cast<size_t>(matrix)];
  const BufferLayout& layout = buffer_.layout();
  const int64_t first = layout.shard_begin(m.bucket, rank);
  const int64_t begin = std::max(m.begin, first), end = std::min(m.end(), first + layout.shard_numel(m.bucket));
  return {matrix, begin, std::max<int64_t>(0, end - begin)};
}

// Blocks of all tp ranks, put together: [k, r, c] -> [k, R, C].
at::Tensor MatrixUpdate::whole(const Matrix& matrix, const at::Tensor& blocks) const {
  const int64_t k = blocks.size(0), ranks = tp_.size();
  const at::Tensor all = at::empty({ranks, k, matrix.rows, matrix.columns}, blocks.options());
  tp_.all_gather(all, blocks, "blocks of weight matrices");
  if (matrix.split == 0) return all.permute({1, 0, 2, 3}).reshape({k, matrix.whole_rows, matrix.whole_columns});
  return all.permute({1, 2, 0, 3}).reshape({k, matrix.whole_rows, matrix.whole_columns});
}

// Returns s O for blocks [k, r, c] of matrices shaped like `matrix`.
at::Tensor MatrixUpdate::orthogonalized(const Matrix& matrix, const at::Tensor& blocks) const {
  // Replicas compute the same, so they must use the same kernels.
  const ops::GemmKernels kernels{.choice = ops::KernelChoice::kFixed, .plans = matrix.parameter->plans};
  const ops::NewtonSchulz& how = muon_->iteration();
  const bool alone = matrix.split < 0 || tp_.size() == 1;
  const MuonTpMode mode = alone ? MuonTpMode::kBlockwise : muon_->settings().tp_mode;
  if (mode == MuonTpMode::kBlockwise)
    return ops::orthogonalize(blocks, how, kernels).mul_(muon_->scale(matrix.rows, matrix.columns));
  const double scale = muon_->scale(matrix.whole_rows, matrix.whole_columns);
  if (mode == MuonTpMode::kDistributed)
    return ops::orthogonalize_blocks(blocks, matrix.split, how, tp_, kernels).mul_(scale);
  const int64_t size = matrix.split == 0 ? matrix.rows : matrix.columns;
  return ops::orthogonalize(whole(matrix, blocks), how, kernels)
      .narrow(matrix.split + 1, tp_.rank() * size, size)
      .mul(scale);
}

// Matrices of one shape that follow each other are done together, as far as a round's memory allows.
void MatrixUpdate::orthogonalize_all(const std::vector<int>& matrices, const std::vector<at::Tensor>& values) const {
  for (size_t first = 0, next = 0; first < matrices.size(); first = next) {
    const Matrix& matrix = matrices_[static_cast<size_t>(matrices[first])];
    std::vector<at::Tensor> blocks;
    for (int64_t elements = 0; next < matrices.size(); ++next) {
      const Matrix& other = matrices_[static_cast<size_t>(matrices[next])];
      elements += other.numel();
      if (!other.same_shape(matrix) || (next > first && elements > kRoundElements)) break;
      blocks.push_back(values[next].view({matrix.rows, matrix.columns}));
    }
    const at::Tensor results = orthogonalized(matrix, at::stack(blocks).to(at::kFloat));
    for (size_t i = first; i < next; ++i)
      values[i].view({matrix.rows, matrix.columns}).copy_(results[static_cast<int64_t>(i - first)]);
  }
}

void MatrixUpdate::run_round(const MatrixRound& round) const {
  const comm::Group& shards = buffer_.groups().shards;
  const at::Tensor& grads = buffer_.grads();
  const int ranks = shards.size(), own = shards.rank();
  std::vector<int64_t> sent(static_cast<size_t>(ranks)), received(static_cast<size_t>(ranks));
  std::vector<at::Tensor> leaving;  // views of the gradients, in the order of the messages
  for (int owner = 0; owner < ranks; ++owner)
    for (const int matrix : round[static_cast<size_t>(owner)]) {
      const Stretch s = stretch(matrix, own);
      if (s.n == 0) continue;
      leaving.push_back(grads.narrow(0, s.begin, s.n));
      sent[static_cast<size_t>(owner)] += s.n;
    }
  const std::vector<int>& mine = round[static_cast<size_t>(own)];
  for (int rank = 0; rank < ranks; ++rank)
    for (const int matrix : mine) received[static_cast<size_t>(rank)] += stretch(matrix, rank).n;

  const auto total = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  const at::Tensor out = leaving.empty() ? at::empty({0}, grads.options()) : at::cat(leaving);
  const at::Tensor in = at::empty({total(received)}, grads.options());
  shards.all_to_all(in, out, received, sent, "weight matrices to their owners");

  // Copies between the messages and the matrices, in either direction.
  std::vector<at::Tensor> values;
  for (const int matrix : mine)
    values.push_back(at::empty({matrices_[static_cast<size_t>(matrix)].numel()}, grads.options()));
  const auto for_each_stretch = [&](const auto& copy) {
    int64_t at = 0;
    for (int rank = 0; rank < ranks; ++rank)
      for (size_t i = 0; i < mine.size(); ++i) {
        const Stretch s = stretch(mine[i], rank);
        if (s.n == 0) continue;
        const int64_t offset = s.begin - matrices_[static_cast<size_t>(mine[i])].begin;
        copy(in.narrow(0, at, s.n), values[i].narrow(0, offset, s.n));
        at += s.n;
      }
  };
  for_each_stretch([](const at::Tensor& message, at::Tensor value) { value.copy_(message); });
  orthogonalize_all(mine, values);
  for_each_stretch([](at::Tensor message, const at::Tensor& value) { message.copy_(value); });
  shards.all_to_all(out, in, sent, received, "orthogonal matrices to their shards");
  int64_t at = 0;
  for (const at::Tensor& place : leaving) {
    place.copy_(out.narrow(0, at, place.numel()));
    at += place.numel();
  }
}

void MatrixUpdate::run() const {
  const at::NoGradGuard no_grad;
  const ReduceGroups& groups = buffer_.groups();
  for (const MatrixRound& round : rounds_) {
    if (groups.sharded && groups.shards.size() > 1) {
      run_round(round);
      continue;
    }
    std::vector<at::Tensor> values;
    for (const int matrix : round[0]) {
      const Matrix& m = matrices_[static_cast<size_t>(matrix)];
      values.push_back(buffer_.grads().narrow(0, m.begin, m.numel()));
    }
    orthogonalize_all(round[0], values);
  }
}

}  // namespace megalith::optim
