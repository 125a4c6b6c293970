// The closed sets of values that options accept. Names on the command line are listed beside the enumerators, so that
// the parser, the documents and the consumers share one list.
//
//   enum class Stage { kPretrain, kSft, kDpo };      choice_of<Stage>("sft") == Stage::kSft
//   EnumNames<Stage>::kNames                         choice_name(Stage::kSft) == "sft"
//
// The names are part of args.yaml and of checkpoints, so they may be added to but not changed.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "megalith/layout/pipeline_schedule.h"

namespace megalith::config {

// Specialized for every enumeration below: `kNames`, pairs of enumerator and name.
template <typename E>
struct EnumNames;

// Returns the name of a choice on the command line; empty for a value that is not an enumerator.
template <typename E>
constexpr std::string_view choice_name(E choice) {
  for (const auto& [item, name] : EnumNames<E>::kNames)
    if (item == choice) return name;
  return {};
}

// Returns the choice of that name, if there is one.
template <typename E>
constexpr std::optional<E> choice_of(std::string_view name) {
  for (const auto& [item, item_name] : EnumNames<E>::kNames)
    if (item_name == name) return item;
  return std::nullopt;
}

// The front end that an argument list was written for: ROLL/HF/LLaMA-Factory (`megalith train`) or Megatron-LM
// (`megalith pretrain`). It decides defaults and the spelling that the documents show; both accept every name.
enum class Dialect { kTrain, kPretrain };

// The training task: next tokens of documents, answers of conversations, preferences between answers, verdicts on
// single answers; rewards of answers (from preferences), or labels of texts.
enum class Stage { kPretrain, kSft, kDpo, kKto, kReward, kClassify };
template <>
struct EnumNames<Stage> {
  static constexpr auto kNames = std::to_array<std::pair<Stage, std::string_view>>({{Stage::kPretrain, "pt"},
                                                                                    {Stage::kSft, "sft"},
                                                                                    {Stage::kDpo, "dpo"},
                                                                                    {Stage::kKto, "kto"},
                                                                                    {Stage::kReward, "rm"},
                                                                                    {Stage::kClassify, "cls"}});
};
// Returns whether a stage trains a model that scores whole sequences, in place of one that predicts tokens.
constexpr bool scores_sequences(Stage stage) { return stage == Stage::kReward || stage == Stage::kClassify; }

// The most yes-or-no labels of a text: data keeps them as bits of a positive 32-bit number.
inline constexpr int kMostLabelsAtOnce = 31;

// The meaning of the scores of a sequence, in transformers' words: one number (mean squared error), one class of
// several (cross-entropy), or a yes or no for each of them (binary cross-entropy).
enum class ProblemType { kRegression, kSingleLabel, kMultiLabel };
template <>
struct EnumNames<ProblemType> {
  static constexpr auto kNames = std::to_array<std::pair<ProblemType, std::string_view>>(
      {{ProblemType::kRegression, "regression"},
       {ProblemType::kSingleLabel, "single_label_classification"},
       {ProblemType::kMultiLabel, "multi_label_classification"}});
};

// Whether low-rank adapters, some layers or all weights are trained. lora freezes the model and writes an adapter;
// freeze and full write a whole model.
enum class FinetuningType { kLora, kFreeze, kFull };
template <>
struct EnumNames<FinetuningType> {
  static constexpr auto kNames = std::to_array<std::pair<FinetuningType, std::string_view>>(
      {{FinetuningType::kLora, "lora"}, {FinetuningType::kFreeze, "freeze"}, {FinetuningType::kFull, "full"}});
};

// The 16 values of weights in 4 bits: quantiles of a normal distribution, or floating-point numbers.
enum class QuantizationType { kNf4, kFp4 };
template <>
struct EnumNames<QuantizationType> {
  static constexpr auto kNames = std::to_array<std::pair<QuantizationType, std::string_view>>(
      {{QuantizationType::kNf4, "nf4"}, {QuantizationType::kFp4, "fp4"}});
};

// Recompute whole layers in backward, or selected modules only. Full keeps only layer inputs and costs about a third
// more compute; selective repeats what is cheap and large.
enum class RecomputeGranularity { kFull, kSelective };
template <>
struct EnumNames<RecomputeGranularity> {
  static constexpr auto kNames = std::to_array<std::pair<RecomputeGranularity, std::string_view>>(
      {{RecomputeGranularity::kFull, "full"}, {RecomputeGranularity::kSelective, "selective"}});
};

// With full granularity: save the input of every n-th layer, or recompute only the first n layers.
enum class RecomputeMethod { kUniform, kBlock };
template <>
struct EnumNames<RecomputeMethod> {
  static constexpr auto kNames = std::to_array<std::pair<RecomputeMethod, std::string_view>>(
      {{RecomputeMethod::kUniform, "uniform"}, {RecomputeMethod::kBlock, "block"}});
};

// The reference's layer library; both names lead to Megalith's own layers.
enum class TransformerImpl { kLocal, kTransformerEngine };
template <>
struct EnumNames<TransformerImpl> {
  static constexpr auto kNames = std::to_array<std::pair<TransformerImpl, std::string_view>>(
      {{TransformerImpl::kLocal, "local"}, {TransformerImpl::kTransformerEngine, "transformer_engine"}});
};

// The transport between ranks. nccl moves data between GPUs, gloo between hosts; gloo also allows several ranks on one
// GPU.
enum class CommBackend { kNccl, kGloo };
template <>
struct EnumNames<CommBackend> {
  static constexpr auto kNames = std::to_array<std::pair<CommBackend, std::string_view>>(
      {{CommBackend::kNccl, "nccl"}, {CommBackend::kGloo, "gloo"}});
};

// How tokens reach their experts: all ranks gather all tokens, or each token is sent to the ranks of its experts.
enum class TokenDispatcher { kAllGather, kAllToAll };
template <>
struct EnumNames<TokenDispatcher> {
  static constexpr auto kNames = std::to_array<std::pair<TokenDispatcher, std::string_view>>(
      {{TokenDispatcher::kAllGather, "allgather"}, {TokenDispatcher::kAllToAll, "alltoall"}});
};

// The tokens that an expert at its capacity keeps: the most probable, or the first.
enum class DropPolicy { kProbs, kPosition };
template <>
struct EnumNames<DropPolicy> {
  static constexpr auto kNames = std::to_array<std::pair<DropPolicy, std::string_view>>(
      {{DropPolicy::kProbs, "probs"}, {DropPolicy::kPosition, "position"}});
};

// The precision of the router's scores. Softmax over many experts loses small scores in bf16, hence no value for it
// here.
enum class RouterDtype { kFp32, kFp64 };
template <>
struct EnumNames<RouterDtype> {
  static constexpr auto kNames = std::to_array<std::pair<RouterDtype, std::string_view>>(
      {{RouterDtype::kFp32, "fp32"}, {RouterDtype::kFp64, "fp64"}});
};

// How the router turns logits into scores. softmax scores compete with each other; sigmoid scores are independent and
// are normalized after the choice.
enum class ScoreFunction { kSoftmax, kSigmoid };
template <>
struct EnumNames<ScoreFunction> {
  static constexpr auto kNames = std::to_array<std::pair<ScoreFunction, std::string_view>>(
      {{ScoreFunction::kSoftmax, "softmax"}, {ScoreFunction::kSigmoid, "sigmoid"}});
};

// How positions enter the model: learned_absolute adds a table (GPT-2), rope rotates queries and keys, yarn is rope
// stretched to longer sequences.
enum class PositionEmbedding { kLearnedAbsolute, kRope, kYarn, kNone };
template <>
struct EnumNames<PositionEmbedding> {
  static constexpr auto kNames = std::to_array<std::pair<PositionEmbedding, std::string_view>>(
      {{PositionEmbedding::kLearnedAbsolute, "learned_absolute"},
       {PositionEmbedding::kRope, "rope"},
       {PositionEmbedding::kYarn, "yarn"},
       {PositionEmbedding::kNone, "none"}});
};

// The rotary embedding of multi-latent attention.
enum class RopeType { kRope, kYarn };
template <>
struct EnumNames<RopeType> {
  static constexpr auto kNames =
      std::to_array<std::pair<RopeType, std::string_view>>({{RopeType::kRope, "rope"}, {RopeType::kYarn, "yarn"}});
};

// The norm of every layer.
enum class Normalization { kLayerNorm, kRmsNorm };
template <>
struct EnumNames<Normalization> {
  static constexpr auto kNames = std::to_array<std::pair<Normalization, std::string_view>>(
      {{Normalization::kLayerNorm, "LayerNorm"}, {Normalization::kRmsNorm, "RMSNorm"}});
};

// e4m3 everywhere, or e4m3 forward and e5m2 for gradients (hybrid).
enum class Fp8Format { kE4m3, kHybrid };
template <>
struct EnumNames<Fp8Format> {
  static constexpr auto kNames = std::to_array<std::pair<Fp8Format, std::string_view>>(
      {{Fp8Format::kE4m3, "e4m3"}, {Fp8Format::kHybrid, "hybrid"}});
};

// Megatron's name of the update rule.
enum class OptimizerKind { kAdam, kSgd, kMuon, kLion };
template <>
struct EnumNames<OptimizerKind> {
  static constexpr auto kNames =
      std::to_array<std::pair<OptimizerKind, std::string_view>>({{OptimizerKind::kAdam, "adam"},
                                                                 {OptimizerKind::kSgd, "sgd"},
                                                                 {OptimizerKind::kMuon, "muon"},
                                                                 {OptimizerKind::kLion, "lion"}});
};

// The rule for what Muon does not update: embeddings, heads, norms and biases.
enum class ScalarOptimizer { kAdam, kLion };
template <>
struct EnumNames<ScalarOptimizer> {
  static constexpr auto kNames = std::to_array<std::pair<ScalarOptimizer, std::string_view>>(
      {{ScalarOptimizer::kAdam, "adam"}, {ScalarOptimizer::kLion, "lion"}});
};

// How large Muon's updates are, for a weight with `out` rows and `in` columns: the orthogonal matrix is multiplied by
// sqrt(max(out, in)), sqrt(out / in) or sqrt(max(1, out / in)).
enum class MuonScale { kSpectral, kUnitRmsNorm, kShapeScaling };
template <>
struct EnumNames<MuonScale> {
  static constexpr auto kNames =
      std::to_array<std::pair<MuonScale, std::string_view>>({{MuonScale::kSpectral, "spectral"},
                                                             {MuonScale::kUnitRmsNorm, "unit_rms_norm"},
                                                             {MuonScale::kShapeScaling, "shape_scaling"}});
};

// How Muon treats a weight of which each tensor-parallel rank has a block: each block is a matrix of its own; every
// rank orthogonalizes the whole weight; or the ranks share its products.
enum class MuonTpMode { kBlockwise, kDuplicated, kDistributed };
template <>
struct EnumNames<MuonTpMode> {
  static constexpr auto kNames =
      std::to_array<std::pair<MuonTpMode, std::string_view>>({{MuonTpMode::kBlockwise, "blockwise"},
                                                              {MuonTpMode::kDuplicated, "duplicated"},
                                                              {MuonTpMode::kDistributed, "distributed"}});
};

// The coefficients of Muon's Newton-Schulz iteration: Jordan's three numbers in every step (torch.optim.Muon), five
// sets of three, the eight of Polar Express, or the four of "almost orthogonal layers".
enum class MuonCoefficients { kSimple, kQuintic, kPolarExpress, kAol };
template <>
struct EnumNames<MuonCoefficients> {
  static constexpr auto kNames =
      std::to_array<std::pair<MuonCoefficients, std::string_view>>({{MuonCoefficients::kSimple, "simple"},
                                                                    {MuonCoefficients::kQuintic, "quintic"},
                                                                    {MuonCoefficients::kPolarExpress, "polar_express"},
                                                                    {MuonCoefficients::kAol, "aol"}});
};

// Hugging Face's name of the update rule; all adamw spellings are the same rule.
enum class HfOptimizer { kAdamwTorchFused, kAdamwTorch, kAdamwHf, kSgd };
template <>
struct EnumNames<HfOptimizer> {
  static constexpr auto kNames =
      std::to_array<std::pair<HfOptimizer, std::string_view>>({{HfOptimizer::kAdamwTorchFused, "adamw_torch_fused"},
                                                               {HfOptimizer::kAdamwTorch, "adamw_torch"},
                                                               {HfOptimizer::kAdamwHf, "adamw_hf"},
                                                               {HfOptimizer::kSgd, "sgd"}});
};

// How weight decay moves from its start to its end value over the run.
enum class WeightDecayStyle { kConstant, kLinear, kCosine };
template <>
struct EnumNames<WeightDecayStyle> {
  static constexpr auto kNames =
      std::to_array<std::pair<WeightDecayStyle, std::string_view>>({{WeightDecayStyle::kConstant, "constant"},
                                                                    {WeightDecayStyle::kLinear, "linear"},
                                                                    {WeightDecayStyle::kCosine, "cosine"}});
};

// Hugging Face's names of learning-rate schedules. Each maps to one of Megatron's shapes below; the two with min_lr
// are cosine with a floor.
enum class HfScheduler {
  kLinear,
  kCosine,
  kConstant,
  kConstantWithWarmup,
  kInverseSqrt,
  kCosineMinLr,
  kCosineWarmupMinLr,
  kWsd
};
template <>
struct EnumNames<HfScheduler> {
  static constexpr auto kNames = std::to_array<std::pair<HfScheduler, std::string_view>>(
      {{HfScheduler::kLinear, "linear"},
       {HfScheduler::kCosine, "cosine"},
       {HfScheduler::kConstant, "constant"},
       {HfScheduler::kConstantWithWarmup, "constant_with_warmup"},
       {HfScheduler::kInverseSqrt, "inverse_sqrt"},
       {HfScheduler::kCosineMinLr, "cosine_with_min_lr"},
       {HfScheduler::kCosineWarmupMinLr, "cosine_warmup_with_min_lr"},
       {HfScheduler::kWsd, "warmup_stable_decay"}});
};

// Megatron's names of learning-rate schedules; WSD is warmup-stable-decay. The formulas are in
// optim/schedule/lr_schedule.h.
enum class LrDecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
template <>
struct EnumNames<LrDecayStyle> {
  static constexpr auto kNames = std::to_array<std::pair<LrDecayStyle, std::string_view>>(
      {{LrDecayStyle::kConstant, "constant"},
       {LrDecayStyle::kLinear, "linear"},
       {LrDecayStyle::kCosine, "cosine"},
       {LrDecayStyle::kInverseSquareRoot, "inverse-square-root"},
       {LrDecayStyle::kWsd, "WSD"}});
};

// The shape of the decay at the end of WSD. With q from 0 to 1 over the phase, the factor is 2 * 0.5^q - 1, 1 - q, (1
// + cos(pi q)) / 2 or 1 - sqrt(q).
enum class WsdDecayStyle { kExponential, kLinear, kCosine, kMinusSqrt };
template <>
struct EnumNames<WsdDecayStyle> {
  static constexpr auto kNames =
      std::to_array<std::pair<WsdDecayStyle, std::string_view>>({{WsdDecayStyle::kExponential, "exponential"},
                                                                 {WsdDecayStyle::kLinear, "linear"},
                                                                 {WsdDecayStyle::kCosine, "cosine"},
                                                                 {WsdDecayStyle::kMinusSqrt, "minus_sqrt"}});
};

// When something recurring happens: never, every n steps, after each epoch, or at a new best metric. kBest is for
// saving only; validate() asks for a metric with it.
enum class Interval { kNo, kSteps, kEpoch, kBest };
template <>
struct EnumNames<Interval> {
  static constexpr auto kNames = std::to_array<std::pair<Interval, std::string_view>>(
      {{Interval::kNo, "no"}, {Interval::kSteps, "steps"}, {Interval::kEpoch, "epoch"}, {Interval::kBest, "best"}});
};

// layout::ScheduleKind without kNone, which is the schedule of a single stage.
template <>
struct EnumNames<layout::ScheduleKind> {
  static constexpr auto kNames = std::to_array<std::pair<layout::ScheduleKind, std::string_view>>(
      {{layout::ScheduleKind::kOneFOneB, "1f1b"},
       {layout::ScheduleKind::kInterleaved, "interleaved"},
       {layout::ScheduleKind::kZeroBubble, "zero_bubble"}});
};

// Preference losses; the formulas are in train/preference/preference_loss.h.
enum class PrefLoss {
  kSigmoid,
  kRobust,
  kHinge,
  kIpo,
  kOrpo,
  kSimpo,
  kSigmoidNorm,
  kExoPair,
  kNcaPair,
  kBcoPair,
  kSppoHard,
  kAot,
  kAotUnpaired,
  kApoZero,
  kApoDown,
  kDiscopop
};
template <>
struct EnumNames<PrefLoss> {
  static constexpr auto kNames =
      std::to_array<std::pair<PrefLoss, std::string_view>>({{PrefLoss::kSigmoid, "sigmoid"},
                                                            {PrefLoss::kRobust, "robust"},
                                                            {PrefLoss::kHinge, "hinge"},
                                                            {PrefLoss::kIpo, "ipo"},
                                                            {PrefLoss::kOrpo, "orpo"},
                                                            {PrefLoss::kSimpo, "simpo"},
                                                            {PrefLoss::kSigmoidNorm, "sigmoid_norm"},
                                                            {PrefLoss::kExoPair, "exo_pair"},
                                                            {PrefLoss::kNcaPair, "nca_pair"},
                                                            {PrefLoss::kBcoPair, "bco_pair"},
                                                            {PrefLoss::kSppoHard, "sppo_hard"},
                                                            {PrefLoss::kAot, "aot"},
                                                            {PrefLoss::kAotUnpaired, "aot_unpaired"},
                                                            {PrefLoss::kApoZero, "apo_zero"},
                                                            {PrefLoss::kApoDown, "apo_down"},
                                                            {PrefLoss::kDiscopop, "discopop"}});
};
// Returns whether a loss compares the answers' probabilities with those of a reference model.
constexpr bool needs_reference(PrefLoss loss) { return loss != PrefLoss::kOrpo && loss != PrefLoss::kSimpo; }
// Returns whether a run compares answers with a reference model.
constexpr bool needs_reference(Stage stage, PrefLoss loss) {
  return stage == Stage::kKto || (stage == Stage::kDpo && needs_reference(loss));
}
// Returns whether dpo_label_smoothing has a place in a loss.
constexpr bool smooths_pairs(PrefLoss loss) {
  return loss == PrefLoss::kSigmoid || loss == PrefLoss::kRobust || loss == PrefLoss::kExoPair ||
         loss == PrefLoss::kAot || loss == PrefLoss::kAotUnpaired;
}

// The divergence between the distributions of a teacher and of the model that it teaches (formulas:
// train/distillation/distillation_loss.h).
enum class KdLoss { kForwardKl, kReverseKl, kJsd };
template <>
struct EnumNames<KdLoss> {
  static constexpr auto kNames = std::to_array<std::pair<KdLoss, std::string_view>>(
      {{KdLoss::kForwardKl, "forward_kl"}, {KdLoss::kReverseKl, "reverse_kl"}, {KdLoss::kJsd, "jsd"}});
};

// How several datasets are joined: one after the other, or drawn at random until the first is exhausted (under), until
// all are (over), or without repeating any (once).
enum class MixStrategy { kConcat, kInterleaveUnder, kInterleaveOver, kInterleaveOnce };
template <>
struct EnumNames<MixStrategy> {
  static constexpr auto kNames =
      std::to_array<std::pair<MixStrategy, std::string_view>>({{MixStrategy::kConcat, "concat"},
                                                               {MixStrategy::kInterleaveUnder, "interleave_under"},
                                                               {MixStrategy::kInterleaveOver, "interleave_over"},
                                                               {MixStrategy::kInterleaveOnce, "interleave_once"}});
};

// The order of the samples of an epoch.
enum class SamplingStrategy { kRandom, kSequential, kGroupByLength };
template <>
struct EnumNames<SamplingStrategy> {
  static constexpr auto kNames = std::to_array<std::pair<SamplingStrategy, std::string_view>>(
      {{SamplingStrategy::kRandom, "random"},
       {SamplingStrategy::kSequential, "sequential"},
       {SamplingStrategy::kGroupByLength, "group_by_length"}});
};

// Megatron's sample order: in order, or a new permutation per epoch.
enum class DataloaderType { kSingle, kCyclic };
template <>
struct EnumNames<DataloaderType> {
  static constexpr auto kNames = std::to_array<std::pair<DataloaderType, std::string_view>>(
      {{DataloaderType::kSingle, "single"}, {DataloaderType::kCyclic, "cyclic"}});
};

// After a suspicious result (NaN, Inf, a spike): end the run, or compute the step again, here and then elsewhere. The
// last one runs every step twice and reports differences.
enum class RerunMode { kDisabled, kValidateResults, kReportDeterminismStats };
template <>
struct EnumNames<RerunMode> {
  static constexpr auto kNames = std::to_array<std::pair<RerunMode, std::string_view>>(
      {{RerunMode::kDisabled, "disabled"},
       {RerunMode::kValidateResults, "validate_results"},
       {RerunMode::kReportDeterminismStats, "report_determinism_stats"},
       {RerunMode::kReportDeterminismStats, "report_stats"}});  // the spelling of the newest reference
};

// The tokens that are counted as seen: none, all, or those that are not padding.
enum class TokensSeen { kNo, kAll, kNonPadding };
template <>
struct EnumNames<TokensSeen> {
  static constexpr auto kNames = std::to_array<std::pair<TokensSeen, std::string_view>>(
      {{TokensSeen::kNo, "no"}, {TokensSeen::kAll, "all"}, {TokensSeen::kNonPadding, "non_padding"}});
};

}  // namespace megalith::config
