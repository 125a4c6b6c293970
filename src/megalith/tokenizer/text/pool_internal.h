// Pool: working memory that concurrent calls of a const function borrow, one object each, and return for the next call.
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
    Lease(Pool& pool, std::unique_ptr<T> object) : pool_(&pool), object_(std::move(object)) {}
    ~Lease() {
      if (object_) pool_->give_back(std::move(object_));
    }
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
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
  void give_back(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(object));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;  // guarded by mutex_
};

}  // namespace megalith::tokenizer
