// Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022): bytes of activations
// that one layer of a GPT with dropout keeps, in 16 bits.
#include "megalith/plan/activation_formulas.h"

#include <array>

namespace megalith::plan {

namespace {

// The way in which tensor parallelism treats a tensor.
enum class Split {
  kHeads,   // cut into parts by attention heads or by columns of the MLP
  kStream,  // whole on every rank; cut along the sequence with sequence parallelism
  kScores,  // as kHeads, and computed again with selective recomputation
};

// One term of the sum: streams * s·b·h + scores * a·s²·b.
struct KeptTensor {
  const char* name;
  double streams;  // bytes, in s·b·h
  double scores;   // bytes, in a·s²·b
  Split split;
};

// Section 4.1 of the paper, term by term.
constexpr auto kKept = std::to_array<KeptTensor>({
    {"input of the attention's norm", 2, 0, Split::kStream},
    {"input of query, key and value", 2, 0, Split::kStream},
    {"query and key", 4, 0, Split::kHeads},
    {"softmax", 0, 2, Split::kScores},
    {"mask of the dropout on the scores", 0, 1, Split::kScores},
    {"dropped scores", 0, 2, Split::kScores},
    {"value", 2, 0, Split::kHeads},
    {"input of the output projection", 2, 0, Split::kHeads},
    {"mask of the attention's dropout", 1, 0, Split::kStream},
    {"input of the MLP's norm", 2, 0, Split::kStream},
    {"input of the first product", 2, 0, Split::kStream},
    {"input of the activation", 8, 0, Split::kHeads},
    {"input of the second product", 8, 0, Split::kHeads},
    {"mask of the MLP's dropout", 1, 0, Split::kStream},
});

}  // namespace

double megatron_activation_bytes(const MegatronLayer& layer) {
  const double stream = layer.sequence * layer.batch * layer.hidden;
  const double scores = layer.heads * layer.sequence * layer.sequence * layer.batch;
  // Only the input of the layer is kept.
  if (layer.recompute == MegatronLayer::Recompute::kFull) return 2 * stream;
  double bytes = 0;
  for (const KeptTensor& tensor : kKept) {
    if (tensor.split == Split::kScores && layer.recompute == MegatronLayer::Recompute::kSelective) continue;
    const bool whole = tensor.split == Split::kStream && !layer.sequence_parallel;
    bytes += (tensor.streams * stream + tensor.scores * scores) / (whole ? 1 : layer.tp);
  }
  return bytes;
}

}  // namespace megalith::plan
