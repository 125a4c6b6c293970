// A layer fuses tensors along dimension 0, and so does the storage of a rank's experts: each tensor is a stretch of
// rows, contiguous in the parameter and therefore in the buffer.
#include "megalith/optim/matrices.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/matrix.h"

namespace megalith::optim {

namespace {

// The dimension in which a part is smaller than the whole tensor; -1 if in none.
int split_dimension(const nn::ParameterPart& part) {
  if (part.extent[0] != part.global_shape[0]) return 0;
  return part.extent[1] != part.global_shape[1] ? 1 : -1;
}

bool is_fused_qkv(const nn::Parameter& parameter) {
  return parameter.spec.parts.size() == 3 && parameter.spec.name.ends_with("qkv.weight");
}

// The whole parameter as one matrix: rows of its parts one after another.
Matrix joined(const nn::Parameter& parameter) {
  const auto& parts = parameter.spec.parts;
  Matrix matrix{.rows = parameter.value.size(0),
                .columns = parameter.value.size(1),
                .whole_columns = parts[0].global_shape[1],
                .split = split_dimension(parts[0])};
  for (const nn::ParameterPart& part : parts) matrix.whole_rows += part.global_shape[0];
  return matrix;
}

Matrix single(const nn::Parameter& parameter, const nn::ParameterPart& part) {
  check(part.extent[1] == parameter.value.size(1), "{}: its rows are not contiguous", part.name);
  return {.begin = part.row * parameter.value.size(1),
          .rows = part.extent[0],
          .columns = part.extent[1],
          .whole_rows = part.global_shape[0],
          .whole_columns = part.global_shape[1],
          .split = split_dimension(part)};
}

}  // namespace

bool Matrix::same_shape(const Matrix& other) const {
  return rows == other.rows && columns == other.columns && whole_rows == other.whole_rows &&
         whole_columns == other.whole_columns && split == other.split &&
         parameter->spec.expert == other.parameter->spec.expert;
}

std::vector<Matrix> matrices_of(const ParamBuffer& buffer, bool join_qkv) {
  std::vector<Matrix> all;
  for (size_t i = 0; i < buffer.parameters().size(); ++i) {
    const nn::Parameter& parameter = *buffer.parameters()[i];
    check(nn::is_matrix(parameter.spec), "{} is in a buffer of matrices", parameter.spec.name);
    std::vector<Matrix> own;
    if (join_qkv && is_fused_qkv(parameter))
      own.push_back(joined(parameter));
    else
      for (const nn::ParameterPart& part : parameter.spec.parts) own.push_back(single(parameter, part));
    for (Matrix& matrix : own) {
      matrix.parameter = &parameter;
      matrix.bucket = buffer.layout().items[i].bucket;
      matrix.begin += buffer.layout().items[i].begin;
      all.push_back(matrix);
    }
  }
  return all;
}

// The queues are in descending order of cost, so that in each round the owners have about equal work.
std::vector<MatrixRound> plan_rounds(std::span<const MatrixCost> costs, int owners, int64_t limit) {
  std::vector<int> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int i) { return costs[static_cast<size_t>(i)].flop; });
  std::vector<std::vector<int>> queues(static_cast<size_t>(owners));
  std::vector<double> loads(static_cast<size_t>(owners));
  for (const int i : order) {
    const auto least = static_cast<size_t>(std::ranges::min_element(loads) - loads.begin());
    loads[least] += costs[static_cast<size_t>(i)].flop;
    queues[least].push_back(i);
  }
  std::vector<MatrixRound> rounds;
  std::vector<size_t> taken(queues.size());
  const auto left = [&](size_t owner) { return taken[owner] < queues[owner].size(); };
  for (bool any = !costs.empty(); any;) {
    MatrixRound round(queues.size());
    any = false;
    for (size_t owner = 0; owner < queues.size(); ++owner) {
      for (int64_t elements = 0; left(owner) && (elements < limit || round[owner].empty()); ++taken[owner]) {
        const int matrix = queues[owner][taken[owner]];
        elements += costs[static_cast<size_t>(matrix)].elements;
        round[owner].push_back(matrix);
      }
      any |= left(owner);
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

}  // namespace megalith::optim
