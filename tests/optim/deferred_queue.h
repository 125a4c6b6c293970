// A SideQueue without a device, which runs each piece of work only when somebody waits for it: where a wait is missing,
// numbers are wrong.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "megalith/optim/overlap/side_queue.h"

namespace megalith::testing {

// The activity of a queue.
struct QueueLog {
  int lists = 0;            // begun
  std::vector<size_t> ran;  // the number of each piece within its list, in order
};

class DeferredQueue : public optim::SideQueue {
 public:
  explicit DeferredQueue(QueueLog& log) : log_(log) {}

  void begin() override {
    EXPECT_EQ(done_, pieces_.size()) << "pieces are left that nobody has waited for";
    pieces_.clear();
    done_ = 0;
    ++log_.lists;
  }
  void add(std::function<void()> work) override { pieces_.push_back(std::move(work)); }
  void wait_for(size_t piece) override {
    ASSERT_LT(piece, pieces_.size());
    for (; done_ <= piece; ++done_) {
      pieces_[done_]();
      log_.ran.push_back(done_);
    }
  }

 private:
  QueueLog& log_;
  std::vector<std::function<void()>> pieces_;
  size_t done_ = 0;
};

}  // namespace megalith::testing
