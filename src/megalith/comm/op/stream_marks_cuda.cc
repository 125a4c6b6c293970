// Marks by cuStreamWriteValue32: the device writes a 32-bit value into pinned host memory when the stream gets there.
// Compiled only with MEGALITH_CUDA.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/comm/op/stream_marks.h"

namespace megalith::comm {

namespace {

using WriteValue = decltype(&cuStreamWriteValue32);

// Looked up through the runtime, so that nothing has to be linked against the driver.
WriteValue find_write_value() {
  constexpr unsigned kSinceCuda = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  C10_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, kSinceCuda, cudaEnableDefault, &found));
  check<CommError>(found == cudaDriverEntryPointSuccess && function != nullptr,
                   "the CUDA driver has no cuStreamWriteValue32; it must support CUDA 12 or newer");
  return reinterpret_cast<WriteValue>(function);
}

// Words of pinned memory. A mark takes one, with a value that no other mark has, and returns it when it is destroyed;
// the word is reused only after the device has written that value, so that a late write cannot spoil another mark.
class CudaStreamMarks : public StreamMarks, public std::enable_shared_from_this<CudaStreamMarks> {
 public:
  explicit CudaStreamMarks(at::Device device) : device_(device), write_value_(find_write_value()) {}
  // Memory that the device may still write to is not freed: the process is about to end, with a stuck device.
  ~CudaStreamMarks() override {
    collect();
    if (!retired_.empty()) return;
    for (uint32_t* page : pages_) (void)cudaFreeHost(page);
  }

  std::shared_ptr<Completion> mark() override {
    if (recording()) return std::make_shared<NoMark>();
    Word word = take();
    while (word.at == nullptr) {
      add_page();
      word = take();
    }
    auto mark = std::make_shared<Mark>(shared_from_this(), word);
    // Unlike the runtime, the driver does not give a new thread (such as autograd's) the device's context by itself.
    C10_CUDA_CHECK(cudaSetDevice(device_.index()));
    const auto stream = c10::cuda::getCurrentCUDAStream(device_.index());
    const CUresult result = write_value_(stream.stream(), reinterpret_cast<CUdeviceptr>(word.at), word.value,
                                         CU_STREAM_WRITE_VALUE_DEFAULT);
    if (result != CUDA_SUCCESS) {
      mark->fail();
      throw CommError(fmt::format("the device {} cannot mark its stream: CUDA driver error {}", device_.str(),
                                  static_cast<int>(result)));
    }
    return mark;
  }

  // Asks about the current device's stream; another thread (autograd's) may not have set the device yet.
  bool recording() const override {
    C10_CUDA_CHECK(cudaSetDevice(device_.index()));
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }

 private:
  // 4 KiB of pinned memory: a step has hundreds of operations with two marks each, and words are reused.
  static constexpr size_t kWordsOfAPage = 1024;

  // A word in memory, and the value that the device will write there.
  struct Word {
    uint32_t* at = nullptr;
    uint32_t value = 0;
    bool written() const { return std::atomic_ref<uint32_t>(*at).load(std::memory_order_acquire) == value; }
  };

  class Mark : public Completion {
   public:
    Mark(std::shared_ptr<CudaStreamMarks> owner, Word word) : owner_(std::move(owner)), word_(word) {}
    ~Mark() override { owner_->give_back(word_); }
    bool done() override { return word_.written(); }
    // For a write that could not be enqueued: sets the value, so that the word can be reused.
    void fail() { std::atomic_ref<uint32_t>(*word_.at).store(word_.value); }

   private:
    const std::shared_ptr<CudaStreamMarks> owner_;
    const Word word_;
  };

  // The mark of an operation that is only recorded.
  class NoMark : public Completion {
   public:
    bool done() override { return true; }
  };

  // A word that is still to be written waits in `retired_`.
  void give_back(Word word) {
    std::lock_guard lock(mutex_);
    if (word.written())
      free_.push_back(word.at);
    else
      retired_.push_back(word);
  }

  // Requires mutex_, except in the destructor.
  void collect() {
    for (; !retired_.empty() && retired_.front().written(); retired_.pop_front()) free_.push_back(retired_.front().at);
  }

  // `at` is nullptr when all words are in use.
  Word take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) collect();
    if (free_.empty()) return {};
    uint32_t* const at = free_.back();
    free_.pop_back();
    return {at, ++last_value_};
  }

  // Allocates without the lock: allocation may wait for the device, and the watchdog returns words meanwhile.
  void add_page() {
    uint32_t* page = nullptr;
    C10_CUDA_CHECK(
        cudaHostAlloc(reinterpret_cast<void**>(&page), kWordsOfAPage * sizeof(uint32_t), cudaHostAllocDefault));
    std::fill_n(page, kWordsOfAPage, 0U);
    std::lock_guard lock(mutex_);
    pages_.push_back(page);
    for (size_t i = 0; i < kWordsOfAPage; ++i) free_.push_back(page + i);
  }

  const at::Device device_;
  const WriteValue write_value_;
  std::mutex mutex_;
  // Guarded by mutex_.
  uint32_t last_value_ = 0;
  std::vector<uint32_t*> pages_, free_;
  std::deque<Word> retired_;  // returned before the device reached them
};

}  // namespace

std::shared_ptr<StreamMarks> make_stream_marks(at::Device device) { return std::make_shared<CudaStreamMarks>(device); }

}  // namespace megalith::comm
