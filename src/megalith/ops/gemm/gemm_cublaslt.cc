// Products by cuBLASLt with a kernel that was chosen by measuring.
//
// A product (Call) that fits is looked up in its owner's plans (CublasLtPlans) by everything that the library's choice
// depends on (PlanKey). A new key gets a Plan: descriptors and the kernels that the library offers, best guess first.
// The first call that may be repeated times them all, and the fastest is used from then on. A call may be repeated if
// it does not add to its own output; calls that do use the first offer until another call with the same key has
// measured.
//
// Measuring takes as long as some forty calls. Packed rows bring a new number of tokens in every step, so that each
// step would spend more time on measuring than on itself. Therefore keys of about the same sizes form a class, of which
// only the first few are measured; the others use the kernel that was chosen last.
//
// cuBLASLt stores matrices by columns, we store them by rows: there our matrix is its transpose, and out = a b becomes
// outᵀ = bᵀ aᵀ. So b is the library's left factor and a its right one, throughout this file.
//
// A call may have blocks: a [r, m, k] and out [r, m, n], views of larger matrices in which blocks lie apart. The
// library multiplies them as a batch in which every member has the same b.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/cublaslt_internal.h"
#include "megalith/ops/gemm/gemm_internal.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

namespace {

using cublaslt::done;
using cublaslt::Library;
using cublaslt::library;

constexpr int64_t kWorkspace = int64_t{32} << 20;  // bytes that a kernel may use
constexpr int kMostKernels = 10, kRounds = 3;      // kernels to measure, and timed runs of each
constexpr float kWorthAChange = 0.985F;            // a later offer must take less than this part of the time
constexpr int kMostTrials = 2;                     // keys of a class that are measured

// ---- A call ----

// A matrix as the library sees it, column by column: its columns are our rows.
struct Operand {
  int64_t rows = 0, columns = 0;
  int64_t distance = 0;        // from one column to the next, in elements
  bool turned = false;         // the library has to transpose it
  int64_t block_distance = 0;  // from one block to the next; 0 if all blocks are the same
  auto operator<=>(const Operand&) const = default;
};

// Returns the distance of the blocks of x, in elements; 0 if it has none.
int64_t block_distance(const at::Tensor& x) { return x.dim() == 3 ? x.stride(0) : 0; }

// Returns x [rows, columns], or blocks of that shape, seen as its transpose; std::nullopt if neither its rows nor its
// columns are contiguous.
std::optional<Operand> operand_of(const at::Tensor& x) {
  const int64_t rows = x.size(-2), columns = x.size(-1), apart = block_distance(x);
  if (x.stride(-1) == 1 && x.stride(-2) >= columns) return Operand{columns, rows, x.stride(-2), false, apart};
  if (x.stride(-2) == 1 && x.stride(-1) >= rows) return Operand{rows, columns, x.stride(-1), true, apart};
  return std::nullopt;
}

// Returns the largest power of two, up to 256, that divides the address of x and of each of its blocks: kernels may
// need some alignment.
int alignment_of(const at::Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  const auto apart = static_cast<uintptr_t>(block_distance(x) * x.element_size());
  int alignment = 256;
  while ((address | apart) % static_cast<uintptr_t>(alignment) != 0) alignment /= 2;
  return alignment;
}

cudaDataType_t type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return CUDA_R_32F;
    case at::kBFloat16:
      return CUDA_R_16BF;
    case at::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case at::kFloat8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_16F;
  }
}

// Scales of factors in fp8, and how precisely their products are summed.
struct Fp8Factors {
  const at::Tensor &a_inverse_scale, &b_inverse_scale;
  bool fast;
};

struct Call {
  const at::Tensor &out, &a, &b;
  const Addends& added;
  double beta, alpha;
  int spared;                       // multiprocessors that the kernel leaves free
  const Fp8Factors* fp8 = nullptr;  // nullptr for factors of 16 bits

  int64_t blocks() const { return out.dim() == 3 ? out.size(0) : 1; }
  // The matrix that is added to the product: the library's C.
  const at::Tensor& read() const { return added.residual.defined() ? added.residual : out; }
};

// The factors in the library's order: outᵀ = bᵀ aᵀ, so that b is its left one.
struct Factors {
  Operand left, right;
};

std::optional<Factors> factors_of(const Call& call) {
  const auto left = operand_of(call.b), right = operand_of(call.a);
  if (!left || !right) return std::nullopt;
  return Factors{*left, *right};
}

// Everything that the offered kernels of a device, and so their times, depend on.
struct PlanKey {
  at::ScalarType a, b, out;
  bool fast;  // sums of less precision, in fp8
  Operand left, right;
  int64_t blocks;
  int64_t out_distance, read_distance;                                 // from row to row
  int64_t out_block_distance;                                          // from block to block
  int left_alignment, right_alignment, out_alignment, read_alignment;  // in bytes
  int bias_alignment;                                                  // 0 without a bias
  int spared;
  auto operator<=>(const PlanKey&) const = default;
};

PlanKey key_of(const Call& call, const Factors& factors) {
  return {.a = call.a.scalar_type(),
          .b = call.b.scalar_type(),
          .out = call.out.scalar_type(),
          .fast = call.fp8 != nullptr && call.fp8->fast,
          .left = factors.left,
          .right = factors.right,
          .blocks = call.blocks(),
          .out_distance = call.out.stride(-2),
          .read_distance = call.read().stride(-2),
          .out_block_distance = block_distance(call.out),
          .left_alignment = alignment_of(call.b),
          .right_alignment = alignment_of(call.a),
          .out_alignment = alignment_of(call.out),
          .read_alignment = alignment_of(call.read()),
          .bias_alignment = call.added.bias.defined() ? alignment_of(call.added.bias) : 0,
          .spared = call.spared};
}

// Rounds up to one of four sizes per power of two, the factor between which is at most 1.25.
int64_t rounded_up(int64_t size) {
  if (size <= 8) return size;
  const int shift = std::bit_width(static_cast<uint64_t>(size - 1)) - 3;
  return (((size - 1) >> shift) + 1) << shift;
}

// Returns what a key has in common with the others of its class.
PlanKey class_of(PlanKey key) {
  for (Operand* o : {&key.left, &key.right}) {
    o->rows = rounded_up(o->rows);
    o->columns = rounded_up(o->columns);
    o->block_distance = o->block_distance != 0 ? 1 : 0;
  }
  key.out_block_distance = key.out_block_distance != 0 ? 1 : 0;
  return key;
}

// The experience of a class.
struct Learned {
  int trials = 0;                              // keys that were measured
  std::optional<cublasLtMatmulAlgo_t> chosen;  // by the latest of them
};

// The kernel that a call gets.
enum class Kernels {
  kFirst,   // the library's first offer, the same in every process
  kChosen,  // the fastest, as far as it is known
  kTry      // the fastest; may measure now, which writes the result several times
};

// ---- Plans ----

// Descriptors and kernels of one PlanKey.
class Plan {
 public:
  // Returns nullptr if the library has no kernel. `handle` must outlive the plan.
  static std::unique_ptr<Plan> make(cublasLtHandle_t handle, const Call& call, const Factors& factors);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Reads and adds to what the class of its key has `learned`.
  void run(const Call& call, Kernels kernels, Learned& learned, void* stream);

  int64_t last_use = 0;

 private:
  explicit Plan(cublasLtHandle_t handle) : handle_(handle) {}
  bool describe(const Call& call, const Factors& factors);
  bool set_pointers(const Call& call) const;
  bool find_kernels(const Call& call);
  void settle(const Call& call, bool may_try, Learned& learned, const at::Tensor& workspace, cudaStream_t stream);
  void choose(const Call& call, const at::Tensor& workspace, cudaStream_t stream);
  void adopt(const cublasLtMatmulAlgo_t& kernel);
  void start(const Call& call, size_t kernel, const at::Tensor& workspace, cudaStream_t stream) const;

  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, out_ = nullptr, read_ = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> kernels_;
  size_t chosen_ = 0;
  bool settled_ = false;  // chosen_ is final
};

// All plans of one owner, and the handle that they run on; both belong to the device of the first product. Backward
// runs on a thread of its own: one thread at a time looks up, tries and starts a kernel.
class CublasLtPlans final : public GemmPlans {
 public:
  bool run(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addends& added, double beta,
           double alpha, KernelChoice choice) override;
  bool run_fp8(const at::Tensor& out, const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
               const at::Tensor& b_inverse_scale, double beta, bool fast, KernelChoice choice) override;
  Counts counts() const override;

 private:
  bool run(const Call& call, KernelChoice choice);
  bool run(const Call& call, const Factors& factors, Kernels kernels, void* stream);
  Plan* plan_for(const PlanKey& key, const Call& call, const Factors& factors);
  void forget_the_oldest();

  mutable std::mutex mutex_;  // guards everything below
  // Never destroyed: cublasLtDestroy waits for the device, which may hang when a run fails. A handle is small, and a
  // process makes one per model chunk.
  cublasLtHandle_t handle_ = nullptr;
  int device_ = -1;
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;
  std::map<PlanKey, Learned> learned_;  // by class
  int64_t calls_ = 0;
};

Plan::~Plan() {
  const Library& lt = library();
  if (operation_ != nullptr) lt.cublasLtMatmulDescDestroy(operation_);
  for (cublasLtMatrixLayout_t layout : {left_, right_, out_, read_})
    if (layout != nullptr) lt.cublasLtMatrixLayoutDestroy(layout);
}

// Returns how many multiprocessors a call may use.
int32_t multiprocessors_for(const Call& call) {
  int count = 0;
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, call.out.get_device());
  return std::max(1, count - call.spared);
}

// Makes the descriptors: types, transpositions, layouts and, if there is a bias, the epilogue that adds it.
bool Plan::describe(const Call& call, const Factors& factors) {
  const Library& lt = library();
  const auto set = [&](cublasLtMatmulDescAttributes_t which, const auto& value) {
    return done(lt.cublasLtMatmulDescSetAttribute(operation_, which, &value, sizeof value));
  };
  const auto blocks = static_cast<int32_t>(call.blocks());
  const auto layout = [&](cublasLtMatrixLayout_t& to, const at::Tensor& x, const Operand& o) {
    const auto set_layout = [&](cublasLtMatrixLayoutAttribute_t which, const auto& value) {
      return done(lt.cublasLtMatrixLayoutSetAttribute(to, which, &value, sizeof value));
    };
    return done(lt.cublasLtMatrixLayoutCreate(&to, type_of(x), static_cast<uint64_t>(o.rows),
                                              static_cast<uint64_t>(o.columns), o.distance)) &&
           (blocks == 1 || (set_layout(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, blocks) &&
                            set_layout(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, o.block_distance)));
  };
  const auto turn = [](const Operand& o) { return o.turned ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const int64_t rows = call.out.size(-2), columns = call.out.size(-1), apart = block_distance(call.out);
  const Operand out{columns, rows, call.out.stride(-2), false, apart};
  const Operand read{columns, rows, call.read().stride(-2), false, apart};
  bool good = done(lt.cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
              set(CUBLASLT_MATMUL_DESC_TRANSA, turn(factors.left)) &&
              set(CUBLASLT_MATMUL_DESC_TRANSB, turn(factors.right)) && layout(left_, call.b, factors.left) &&
              layout(right_, call.a, factors.right) && layout(out_, call.out, out) && layout(read_, call.out, read);
  if (good && call.spared > 0) good = set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, multiprocessors_for(call));
  if (good && call.fp8 != nullptr)
    good = set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(call.fp8->fast ? 1 : 0));
  if (good && call.added.bias.defined())
    good = set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS) &&
           set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(call.added.bias));
  return good && set_pointers(call);
}

// The addresses of bias and scales are part of the descriptor and differ from call to call.
bool Plan::set_pointers(const Call& call) const {
  const auto set = [&](cublasLtMatmulDescAttributes_t which, const at::Tensor& x) {
    const void* const address = x.const_data_ptr();
    return done(library().cublasLtMatmulDescSetAttribute(operation_, which, &address, sizeof address));
  };
  if (call.added.bias.defined() && !set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.added.bias)) return false;
  return call.fp8 == nullptr || (set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.fp8->b_inverse_scale) &&
                                 set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.fp8->a_inverse_scale));
}

// Asks the library for its best kernels, within the workspace and for the alignments of this call.
bool Plan::find_kernels(const Call& call) {
  const Library& lt = library();
  cublasLtMatmulPreference_t wishes = nullptr;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    return done(lt.cublasLtMatmulPreferenceSetAttribute(wishes, which, &value, sizeof value));
  };
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t which, const at::Tensor& x) {
    return set(which, static_cast<uint32_t>(alignment_of(x)));
  };
  // A kernel that splits the summed dimension adds its parts in fp32: rounded to 16 bits each, they would cost more
  // accuracy than all other roundings of the product. An fp32 result may hold the parts itself.
  const uint32_t reductions =
      call.out.scalar_type() == at::kFloat ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  std::array<cublasLtMatmulHeuristicResult_t, kMostKernels> offers{};
  int count = 0;
  const bool good = done(lt.cublasLtMatmulPreferenceCreate(&wishes)) &&
                    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspace)) &&
                    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions) &&
                    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, call.b) &&
                    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, call.a) &&
                    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, call.read()) &&
                    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, call.out) &&
                    done(lt.cublasLtMatmulAlgoGetHeuristic(handle_, operation_, left_, right_, read_, out_, wishes,
                                                           kMostKernels, offers.data(), &count));
  if (wishes != nullptr) lt.cublasLtMatmulPreferenceDestroy(wishes);
  if (!good) return false;
  for (int i = 0; i < count; ++i)
    if (done(offers[static_cast<size_t>(i)].state)) kernels_.push_back(offers[static_cast<size_t>(i)]);
  return !kernels_.empty();
}

std::unique_ptr<Plan> Plan::make(cublasLtHandle_t handle, const Call& call, const Factors& factors) {
  std::unique_ptr<Plan> plan(new Plan(handle));
  if (!plan->describe(call, factors) || !plan->find_kernels(call)) return nullptr;
  return plan;
}

void Plan::start(const Call& call, size_t kernel, const at::Tensor& workspace, cudaStream_t stream) const {
  const auto alpha = static_cast<float>(call.alpha);
  const float beta = call.added.residual.defined() ? 1 : static_cast<float>(call.beta);
  const cublasStatus_t status = library().cublasLtMatmul(
      handle_, operation_, &alpha, call.b.const_data_ptr(), left_, call.a.const_data_ptr(), right_, &beta,
      call.read().const_data_ptr(), read_, call.out.mutable_data_ptr(), out_, &kernels_[kernel].algo,
      workspace.mutable_data_ptr(), static_cast<size_t>(kWorkspace), stream);
  check(done(status), "cuBLASLt could not multiply {} by {} (status {})", shape_text(call.a), shape_text(call.b),
        static_cast<int>(status));
}

// Takes the shortest of a few interleaved runs of each kernel; an earlier offer wins unless a later one is clearly
// faster. A round is queued at once, after a run that is not timed, so that the time of the host is not measured.
void Plan::choose(const Call& call, const at::Tensor& workspace, cudaStream_t stream) {
  std::vector<cudaEvent_t> events(kernels_.size() + 1);
  for (cudaEvent_t& event : events) cudaEventCreate(&event);
  std::vector<float> shortest(kernels_.size(), std::numeric_limits<float>::max());
  for (int round = 0; round <= kRounds; ++round) {
    start(call, 0, workspace, stream);
    cudaEventRecord(events[0], stream);
    for (size_t i = 0; i < kernels_.size(); ++i) {
      start(call, i, workspace, stream);
      cudaEventRecord(events[i + 1], stream);
    }
    cudaEventSynchronize(events.back());
    for (size_t i = 0; i < kernels_.size() && round > 0; ++i) {  // the first run of a kernel loads it
      float ms = 0;
      cudaEventElapsedTime(&ms, events[i], events[i + 1]);
      shortest[i] = std::min(shortest[i], ms);
    }
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  for (size_t i = 1; i < kernels_.size(); ++i)
    if (shortest[i] < kWorthAChange * shortest[chosen_]) chosen_ = i;
}

// Takes a kernel that was chosen for other sizes, if it can do these.
void Plan::adopt(const cublasLtMatmulAlgo_t& kernel) {
  cublasLtMatmulHeuristicResult_t result{};
  const bool good =
      done(library().cublasLtMatmulAlgoCheck(handle_, operation_, left_, right_, read_, out_, &kernel, &result)) &&
      done(result.state) && result.workspaceSize <= static_cast<size_t>(kWorkspace);
  if (!good) return;
  result.algo = kernel;
  kernels_.push_back(result);
  chosen_ = kernels_.size() - 1;
}

// Decides on the kernel, as soon as that is possible: by measuring, or by what the class has learned.
void Plan::settle(const Call& call, bool may_try, Learned& learned, const at::Tensor& workspace, cudaStream_t stream) {
  const bool enough = learned.trials >= kMostTrials;
  if (enough) {
    adopt(*learned.chosen);
    settled_ = true;
  } else if (may_try) {
    if (kernels_.size() > 1) choose(call, workspace, stream);
    learned = {learned.trials + 1, kernels_[chosen_].algo};
    settled_ = true;
  }
}

void Plan::run(const Call& call, Kernels kernels, Learned& learned, void* stream) {
  auto* const cuda_stream = static_cast<cudaStream_t>(stream);
  const at::Tensor workspace = at::empty({kWorkspace}, call.out.options().dtype(at::kByte));
  check(set_pointers(call), "cuBLASLt rejected the bias or the scales of a product");
  // Measuring waits for the device, which a stream that is recorded into a CUDA graph cannot do.
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  if (kernels != Kernels::kFirst && !settled_ && cudaStreamIsCapturing(cuda_stream, &capturing) == cudaSuccess)
    settle(call, kernels == Kernels::kTry && capturing == cudaStreamCaptureStatusNone, learned, workspace, cuda_stream);
  start(call, kernels == Kernels::kFirst ? 0 : chosen_, workspace, cuda_stream);
}

bool CublasLtPlans::run(const Call& call, const Factors& factors, Kernels kernels, void* stream) {
  // Profiles show the kernel below an operator with the shapes of the factors, as they show libtorch's products.
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (record.isActive()) {
    const std::array<c10::IValue, 2> factors_of_record{call.a, call.b};
    record.before("megalith::product", c10::ArrayRef<const c10::IValue>(factors_of_record.data(), 2));
  }
  const std::lock_guard lock(mutex_);
  if (handle_ == nullptr) {
    check(done(library().cublasLtCreate(&handle_)), "cuBLASLt could not be started");
    device_ = call.out.get_device();
  }
  check(call.out.get_device() == device_,
        "a product on cuda:{} got the plans of cuda:{}; each device needs its own GemmPlans", call.out.get_device(),
        device_);
  const PlanKey key = key_of(call, factors);
  Plan* const plan = plan_for(key, call, factors);
  if (plan == nullptr) return false;
  plan->run(call, kernels, learned_[class_of(key)], stream);
  return true;
}

// Returns nullptr if the library has no kernel. Such a key keeps its empty entry, so that the library is not asked
// again.
Plan* CublasLtPlans::plan_for(const PlanKey& key, const Call& call, const Factors& factors) {
  const auto found = plans_.find(key);
  if (found == plans_.end() && plans_.size() >= kMostPlans) forget_the_oldest();
  std::unique_ptr<Plan>& plan =
      found != plans_.end() ? found->second : (plans_[key] = Plan::make(handle_, call, factors));
  if (plan) plan->last_use = ++calls_;
  return plan.get();
}

// Keeps the half of the plans that was used last. Running kernels need no plan.
void CublasLtPlans::forget_the_oldest() {
  std::vector<int64_t> uses;
  const auto use = [](const std::unique_ptr<Plan>& plan) { return plan ? plan->last_use : 0; };
  for (const auto& [key, plan] : plans_) uses.push_back(use(plan));
  const auto middle = uses.begin() + static_cast<std::ptrdiff_t>(uses.size() / 2);
  std::nth_element(uses.begin(), middle, uses.end());
  std::erase_if(plans_, [&](const auto& entry) { return use(entry.second) < *middle; });
}

GemmPlans::Counts CublasLtPlans::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts{.kept = static_cast<int64_t>(plans_.size())};
  for (const auto& [key, learned] : learned_) counts.trials += learned.trials;
  return counts;
}

// ---- Products that go to the library ----

bool is_16_bit(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

// Whether rows are contiguous, possibly with gaps between them.
bool has_rows(const at::Tensor& x) { return x.stride(-1) == 1 && x.stride(-2) >= x.size(-1); }

bool shapes_fit(const Call& call) {
  const int64_t dims = call.out.dim();
  if ((dims != 2 && dims != 3) || call.a.dim() != dims || call.b.dim() != 2) return false;
  if (call.a.size(-1) != call.b.size(0) || call.out.size(-1) != call.b.size(1)) return false;
  if (!has_rows(call.out) || call.out.size(-2) != call.a.size(-2)) return false;
  if (dims == 2) return true;
  const bool alone = !call.added.bias.defined() && !call.added.residual.defined();
  return alone && call.out.size(0) == call.a.size(0) && call.a.stride(0) > 0 && call.out.stride(0) > 0;
}

// Large enough, and with rows that are multiples of 16 bytes, which the fast kernels need.
bool is_worth_a_trial(const Call& call) {
  const int64_t m = call.blocks() * call.a.size(-2), k = call.a.size(-1), n = call.b.size(1);
  return m * k * n >= kLeastTried && k % 8 == 0 && n % 8 == 0;
}

bool is_on_one_gpu(const Call& call) {
  return call.out.is_cuda() && call.a.device() == call.out.device() && call.b.device() == call.out.device();
}

// One factor at least is in e4m3.
bool fp8_types_fit(const Call& call) {
  const at::ScalarType a = call.a.scalar_type(), b = call.b.scalar_type();
  const auto fits = [](at::ScalarType x) { return x == at::kFloat8_e4m3fn || x == at::kFloat8_e5m2; };
  return fits(a) && fits(b) && (a == at::kFloat8_e4m3fn || b == at::kFloat8_e4m3fn) &&
         (is_16_bit(call.out) || call.out.scalar_type() == at::kFloat);
}

// Whether the factors are of one 16-bit type and the result is of that type too, or fp32 if nothing is added.
bool types_fit(const Call& call) {
  if (call.fp8 != nullptr) return fp8_types_fit(call);
  const at::ScalarType in = call.a.scalar_type(), out = call.out.scalar_type();
  if (!is_16_bit(call.a) || call.b.scalar_type() != in) return false;
  if (out == in) return true;
  return out == at::kFloat && !call.added.bias.defined() && !call.added.residual.defined();
}

bool bias_fits(const Call& call) {
  const at::Tensor& bias = call.added.bias;
  if (!bias.defined()) return true;
  if (bias.scalar_type() != call.out.scalar_type()) return false;
  return bias.dim() == 1 && bias.size(0) == call.out.size(1) && bias.is_contiguous();
}

bool residual_fits(const Call& call) {
  const at::Tensor& residual = call.added.residual;
  if (!residual.defined()) return true;
  if (residual.scalar_type() != call.out.scalar_type()) return false;
  return residual.dim() == 2 && has_rows(residual) && residual.sizes() == call.out.sizes();
}

bool fits(const Call& call) {
  return shapes_fit(call) && is_worth_a_trial(call) && is_on_one_gpu(call) && types_fit(call) && bias_fits(call) &&
         residual_fits(call);
}

// A call that adds to its output (beta is not 0) cannot be repeated; with a residual the output is only written.
Kernels kernels_for(const Call& call, KernelChoice choice) {
  if (choice == KernelChoice::kFixed || at::globalContext().deterministicAlgorithms()) return Kernels::kFirst;
  const bool repeatable = call.beta == 0 || call.added.residual.defined();
  return repeatable ? Kernels::kTry : Kernels::kChosen;
}

bool CublasLtPlans::run(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addends& added,
                        double beta, double alpha, KernelChoice choice) {
  return run({out, a, b, added, beta, alpha, spared()}, choice);
}

bool CublasLtPlans::run_fp8(const at::Tensor& out, const at::Tensor& a, const at::Tensor& a_inverse_scale,
                            const at::Tensor& b, const at::Tensor& b_inverse_scale, double beta, bool fast,
                            KernelChoice choice) {
  const Fp8Factors fp8{a_inverse_scale, b_inverse_scale, fast};
  const Addends none;
  return run({out, a, b, none, beta, /*alpha=*/1, spared(), &fp8}, choice);
}

bool CublasLtPlans::run(const Call& call, KernelChoice choice) {
  if (!fits(call) || !library().complete) return false;
  const auto factors = factors_of(call);
  if (!factors) return false;
  void* const stream = stream_of(call.out);  // also checks that the device is the current one
  return run(call, *factors, kernels_for(call, choice), stream);
}

}  // namespace

std::unique_ptr<GemmPlans> make_cublaslt_plans() { return std::make_unique<CublasLtPlans>(); }

}  // namespace megalith::ops
