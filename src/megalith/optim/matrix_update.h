// MatrixUpdate: orthogonalizes the weight matrices of one flat buffer (rules/muon.h) whose elements are spread over
// ranks.
//
//   every rank     its shard of the gradient buffer holds u, the momentum's update          (Muon::momentum)
//   all-to-all     each matrix to the rank that orthogonalizes it                            with ZeRO-1 only
//   its owner      gathers blocks over tp if need be, iterates, scales
//   all-to-all     each element back to the rank whose shard it is in                        with ZeRO-1 only
//   every rank     its shard of the gradient buffer holds s O                                (Muon::apply)
//
// Without the distributed optimizer every replica holds all of u and orthogonalizes everything by itself; products use
// the same kernels everywhere, so that replicas stay equal.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "megalith/optim/matrices.h"
#include "megalith/optim/rules/muon.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::optim {

// Used by one thread per rank. The buffer and the context outlive it.
class MatrixUpdate {
 public:
  // Elements that an owner receives in a round of the exchange, unless a matrix is larger: 128 MB in fp32.
  static constexpr int64_t kRoundElements = int64_t{1} << 25;

  // Throws a ConfigError for matrices that tensor-parallel ranks do not hold in equal blocks.
  MatrixUpdate(std::shared_ptr<const Muon> muon, const ParamBuffer& buffer, const parallel::ParallelContext& context,
               int64_t round_elements = kRoundElements);

  // Replaces this rank's shards of the gradients, which hold u, by s O. Collective over the ranks that share the
  // buffer's optimizer state, and in tp modes other than blockwise over those of tp (etp for experts).
  void run() const;

  const std::vector<Matrix>& matrices() const { return matrices_; }

 private:
  // A stretch of a matrix that lies in the shard of one rank, and its place in the message between that rank and the
  // owner.
  struct Stretch {
    int matrix = 0;
    int64_t begin = 0;  // element of the buffer
    int64_t n = 0;
  };

  MatrixCost cost_of(const Matrix& matrix) const;
  Stretch stretch(int matrix, int rank) const;
  // Orthogonalizes `values`, the flat blocks of these matrices, in place.
  void orthogonalize_all(const std::vector<int>& matrices, const std::vector<at::Tensor>& values) const;
  at::Tensor orthogonalized(const Matrix& matrix, const at::Tensor& blocks) const;
  at::Tensor whole(const Matrix& matrix, const at::Tensor& blocks) const;
  void run_round(const MatrixRound& round) const;

  std::shared_ptr<const Muon> muon_;
  const ParamBuffer& buffer_;
  const comm::Group tp_;  // etp for a buffer of experts
  std::vector<Matrix> matrices_;
  std::vector<MatrixRound> rounds_;
};

}  // namespace megalith::optim
