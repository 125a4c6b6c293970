// Pool: working memory that concurrent calls of a const function borrow, one object each, and return for the next call.
// Unlike thread_local storage it is freed with its owner.
//
//   const auto scratch = pool_.borrow([] { return std::make_unique<Scratch>(); });
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace megalith::tokenizer {

// Holds as many objects as calls ever ran at the same time.
template <typename T>
class Pool {
 public:
  // Returns the object to the pool at the end of its scope.
  class Lease {
   public:
    // `pool` outlives the lease.
    Lease(Pool& pool, std::unique_ptr<T> object) : pool_(&pool), object_(std::move(object)) {}
    ~Lease() {
      if (object_) pool_->give_back(std::move(object_));
    }
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    // Access to the object; it is this call's alone.
    T& operator*() const { return *object_; }
    T* operator->() const { return object_.get(); }

   private:
    Pool* pool_;
    std::unique_ptr<T> object_;
  };

  // `make` is called when no object is free, and returns a unique_ptr<T>.
  template <typename Make>
  Lease borrow(const Make& make) {
    return Lease(*this, take(make));
  }

  // The same without a lease, for owners that are not a single scope.
  template <typename Make>
  std::unique_ptr<T> take(const Make& make) {
    // The lock is held for a few instructions only; `make` runs without it.
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto object = std::move(free_.back());
        free_.pop_back();
        return object;
      }
    }
    return make();
  }
  // Returns an object; its contents stay as they are, so the next borrower must reset what it uses.
  void give_back(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(object));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;  // guarded by mutex_
};

}  // namespace megalith::tokenizer
