// cuBLASLt with a kernel that was chosen by trying. The library is the one that libtorch has loaded: it is found by its
// name, so that nothing has to be linked.
#include <ATen/ATen.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/product_internal.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

namespace {

constexpr int64_t kWorkspace = int64_t{32} << 20;
constexpr int kMostKernels = 10, kRounds = 3;
constexpr float kWorthAChange = 0.985F;  // of the time of an earlier offer: less is noise

#define MEGALITH_TEXT_OF(x) #x
#define MEGALITH_TEXT(x) MEGALITH_TEXT_OF(x)
constexpr const char* kLibrary = "libcublasLt.so." MEGALITH_TEXT(CUBLAS_VER_MAJOR);
#undef MEGALITH_TEXT
#undef MEGALITH_TEXT_OF

// ---- The library ----

struct Library {
#define MEGALITH_CUBLASLT_FUNCTIONS(each)                                                                        \
  each(cublasLtCreate) each(cublasLtMatmul) each(cublasLtMatmulAlgoGetHeuristic) each(cublasLtMatmulDescCreate)  \
      each(cublasLtMatmulDescSetAttribute) each(cublasLtMatrixLayoutCreate) each(cublasLtMatmulPreferenceCreate) \
          each(cublasLtMatmulPreferenceDestroy) each(cublasLtMatmulPreferenceSetAttribute)
#define MEGALITH_MEMBER(name) decltype(&::name) name = nullptr;
  MEGALITH_CUBLASLT_FUNCTIONS(MEGALITH_MEMBER)
#undef MEGALITH_MEMBER

  bool complete = false;

  Library() {
    void* const handle = dlopen(kLibrary, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) return;
    complete = true;
#define MEGALITH_FIND(name)                                      \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, #name)); \
  complete = complete && name != nullptr;
    MEGALITH_CUBLASLT_FUNCTIONS(MEGALITH_FIND)
#undef MEGALITH_FIND
#undef MEGALITH_CUBLASLT_FUNCTIONS
  }
};

const Library& library() {
  static const Library found;
  return found;
}

bool done(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

// ---- What is asked for ----

// A matrix as the library sees it: columns are what we call rows. `turned`: it is to be transposed.
struct Operand {
  int64_t rows = 0, columns = 0, distance = 0;
  bool turned = false;
};

// x [rows, columns] seen as its transpose; nothing when neither of its sides is contiguous.
std::optional<Operand> operand_of(const at::Tensor& x) {
  const int64_t rows = x.size(0), columns = x.size(1);
  if (x.stride(1) == 1 && x.stride(0) >= columns) return Operand{columns, rows, x.stride(0), false};
  if (x.stride(0) == 1 && x.stride(1) >= rows) return Operand{rows, columns, x.stride(1), true};
  return std::nullopt;
}

int alignment_of(const at::Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  int alignment = 256;
  while (address % static_cast<uintptr_t>(alignment) != 0) alignment /= 2;
  return alignment;
}

cudaDataType_t type_of(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return CUDA_R_32F;
  return x.scalar_type() == at::kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
}

struct Call {
  const at::Tensor &out, &a, &b;
  const Addends& added;
  double beta, alpha;

  const at::Tensor& read() const { return added.residual.defined() ? added.residual : out; }
};

// Everything that a choice depends on.
using Key = std::array<int64_t, 18>;

// Which kernel a call gets.
enum class Kernels {
  kFirst,   // the library's first offer, the same in every process
  kChosen,  // the fastest, or the first offer before there was a trial
  kTry      // the same after a trial, if there was none: the result may be written several times
};

// ---- Descriptors, which live as long as the process: there are as many as there are shapes ----

class Plan {
 public:
  // Nothing when the library has no kernel.
  static std::unique_ptr<Plan> make(const Call& call, const Operand& left, const Operand& right);

  void run(const Call& call, Kernels kernels, void* stream);

 private:
  Plan() = default;
  bool describe(const Call& call, const Operand& left, const Operand& right);
  bool set_bias(const Call& call) const;
  bool find_kernels(const Call& call);
  void choose(const Call& call, const at::Tensor& workspace, cudaStream_t stream);
  void start(const Call& call, size_t kernel, const at::Tensor& workspace, cudaStream_t stream) const;

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, out_ = nullptr, read_ = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> kernels_;
  size_t chosen_ = 0;
  bool tried_ = false;
};

cublasLtHandle_t handle_of(int device) {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (handle == nullptr) check(done(library().cublasLtCreate(&handle)), "cuBLASLt could not be started");
  return handle;
}

bool Plan::describe(const Call& call, const Operand& left, const Operand& right) {
  const Library& lt = library();
  const auto set = [&](cublasLtMatmulDescAttributes_t which, const auto& value) {
    return done(lt.cublasLtMatmulDescSetAttribute(operation_, which, &value, sizeof value));
  };
  const auto layout = [&](cublasLtMatrixLayout_t& to, const at::Tensor& x, const Operand& o) {
    return done(lt.cublasLtMatrixLayoutCreate(&to, type_of(x), static_cast<uint64_t>(o.rows),
                                              static_cast<uint64_t>(o.columns), o.distance));
  };
  const auto turn = [](const Operand& o) { return o.turned ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const Operand out{call.out.size(1), call.out.size(0), call.out.stride(0)};
  const Operand read{call.out.size(1), call.out.size(0), call.read().stride(0)};
  bool good = done(lt.cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
              set(CUBLASLT_MATMUL_DESC_TRANSA, turn(left)) && set(CUBLASLT_MATMUL_DESC_TRANSB, turn(right)) &&
              layout(left_, call.b, left) && layout(right_, call.a, right) && layout(out_, call.out, out) &&
              layout(read_, call.out, read);
  if (good && call.added.bias.defined())
    good = set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS) &&
           set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(call.added.bias)) && set_bias(call);
  return good;
}

bool Plan::set_bias(const Call& call) const {
  const void* const bias = call.added.bias.const_data_ptr();
  return done(
      library().cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
}

bool Plan::find_kernels(const Call& call) {
  const Library& lt = library();
  cublasLtMatmulPreference_t wishes = nullptr;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    return done(lt.cublasLtMatmulPreferenceSetAttribute(wishes, which, &value, sizeof value));
  };
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t which, const at::Tensor& x) {
    return set(which, static_cast<uint32_t>(alignment_of(x)));
  };
  std::array<cublasLtMatmulHeuristicResult_t, kMostKernels> found{};
  int count = 0;
  const bool good = done(lt.cublasLtMatmulPreferenceCreate(&wishes)) &&
                    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspace)) &&
                    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, call.b) &&
                    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, call.a) &&
                    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, call.read()) &&
                    align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, call.out) &&
                    done(lt.cublasLtMatmulAlgoGetHeuristic(handle_of(call.out.get_device()), operation_, left_, right_,
                                                           read_, out_, wishes, kMostKernels, found.data(), &count));
  if (wishes != nullptr) lt.cublasLtMatmulPreferenceDestroy(wishes);
  if (!good) return false;
  for (int i = 0; i < count; ++i)
    if (done(found[static_cast<size_t>(i)].state)) kernels_.push_back(found[static_cast<size_t>(i)]);
  return !kernels_.empty();
}

std::unique_ptr<Plan> Plan::make(const Call& call, const Operand& left, const Operand& right) {
  std::unique_ptr<Plan> plan(new Plan);
  if (!plan->describe(call, left, right) || !plan->find_kernels(call)) return nullptr;
  return plan;
}

void Plan::start(const Call& call, size_t kernel, const at::Tensor& workspace, cudaStream_t stream) const {
  const auto alpha = static_cast<float>(call.alpha);
  const float beta = call.added.residual.defined() ? 1 : static_cast<float>(call.beta);
  const cublasStatus_t status = library().cublasLtMatmul(
      handle_of(call.out.get_device()), operation_, &alpha, call.b.const_data_ptr(), left_, call.a.const_data_ptr(),
      right_, &beta, call.read().const_data_ptr(), read_, call.out.mutable_data_ptr(), out_, &kernels_[kernel].algo,
      workspace.mutable_data_ptr(), static_cast<size_t>(kWorkspace), stream);
  check(done(status), "cuBLASLt could not multiply [{}, {}] by [{}, {}] (status {})", call.a.size(0), call.a.size(1),
        call.b.size(0), call.b.size(1), static_cast<int>(status));
}

// The shortest of a few interleaved runs of each kernel; an earlier offer wins unless a later one is clearly faster. A
// round is queued at once, behind a run that nobody looks at, so that no time of the host is measured.
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
  tried_ = true;
}

void Plan::run(const Call& call, Kernels kernels, void* stream) {
  auto* const on = static_cast<cudaStream_t>(stream);
  const at::Tensor workspace = at::empty({kWorkspace}, call.out.options().dtype(at::kByte));
  if (call.added.bias.defined()) check(set_bias(call), "cuBLASLt did not take a bias");
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  if (kernels == Kernels::kTry && !tried_ && kernels_.size() > 1 &&
      cudaStreamIsCapturing(on, &capturing) == cudaSuccess && capturing == cudaStreamCaptureStatusNone)
    choose(call, workspace, on);
  start(call, kernels == Kernels::kFirst ? 0 : chosen_, workspace, on);
}

bool is_16_bit(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

bool fits(const Call& call) {
  const auto rows_of = [](const at::Tensor& x) { return x.dim() == 2 && x.stride(1) == 1 && x.stride(0) >= x.size(1); };
  const at::Tensor &a = call.a, &b = call.b, &out = call.out;
  const Addends& added = call.added;
  if (a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(0) || !is_16_bit(a) || !rows_of(out)) return false;
  if (a.size(0) * a.size(1) * b.size(1) < kLeastTried || a.size(1) % 8 != 0 || b.size(1) % 8 != 0) return false;
  const bool same_device = a.device() == b.device() && a.device() == out.device();
  const bool types = b.scalar_type() == a.scalar_type() &&
                     (out.scalar_type() == a.scalar_type() ||
                      (out.scalar_type() == at::kFloat && !added.bias.defined() && !added.residual.defined()));
  if (!same_device || !types || out.size(0) != a.size(0) || out.size(1) != b.size(1)) return false;
  if (added.bias.defined() && (added.bias.scalar_type() != out.scalar_type() || added.bias.dim() != 1 ||
                               added.bias.size(0) != out.size(1) || !added.bias.is_contiguous()))
    return false;
  return !added.residual.defined() || (added.residual.scalar_type() == out.scalar_type() && rows_of(added.residual) &&
                                       added.residual.sizes() == out.sizes());
}

}  // namespace

bool product_by_cublaslt(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addends& added,
                         double beta, double alpha, KernelChoice choice) {
  const Call call{out, a, b, added, beta, alpha};
  if (!fits(call) || !library().complete) return false;
  const auto left = operand_of(b), right = operand_of(a);
  if (!left || !right) return false;
  // First of all: handles and events are made on the current device, which this checks.
  void* const stream = stream_of(out);
  const Key key{out.get_device(),
                static_cast<int64_t>(a.scalar_type()),
                static_cast<int64_t>(out.scalar_type()),
                left->rows,
                left->columns,
                left->distance,
                left->turned ? 1 : 0,
                right->rows,
                right->columns,
                right->distance,
                right->turned ? 1 : 0,
                out.stride(0),
                call.read().stride(0),
                alignment_of(b),
                alignment_of(a),
                alignment_of(out),
                alignment_of(call.read()),
                added.bias.defined() ? alignment_of(added.bias) : 0};
  static std::mutex mutex;  // ranks may be threads: one tries at a time
  static std::map<Key, std::unique_ptr<Plan>> plans;
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = plans.try_emplace(key);
  if (is_new) place->second = Plan::make(call, *left, *right);
  if (!place->second) return false;
  const bool repeatable = beta == 0 || added.residual.defined();
  const bool by_time = choice == KernelChoice::kByTime && !at::globalContext().deterministicAlgorithms();
  place->second->run(call, !by_time ? Kernels::kFirst : repeatable ? Kernels::kTry : Kernels::kChosen, stream);
  return true;
}

}  // namespace megalith::ops
