// A queue in front of a backend that is still connecting. A detached thread connects, then starts the queued operations
// in order under the lock; from then on operations go straight to the backend. The queue is drained while the lock is
// held, so an operation started meanwhile cannot overtake the queued ones. A QueuedOp forwards to the real handle as
// soon as there is one; until then, time in the queue counts against the operation's limit, and an abort ends it.
#include "megalith/comm/backend/lazy_backend.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "megalith/base/error.h"

namespace megalith::comm {

namespace {

// The handle of an operation that may still be waiting for the connection.
class QueuedOp : public PendingOp {
 public:
  // Waits for the connection, then passes the remaining time on.
  bool wait_for(std::chrono::milliseconds limit) override {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return inner_ || !error_.empty(); });
    check<CommError>(error_.empty(), "{}", error_);
    if (!inner_) return false;
    const std::shared_ptr<PendingOp> inner = inner_;
    lock.unlock();
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    return inner->wait_for(std::max(left, std::chrono::milliseconds(1)));
  }
  bool done() override {
    std::lock_guard lock(mutex_);
    return !error_.empty() || (inner_ && inner_->done());
  }
  // Before the operation has started, the reason takes the place of its result; afterwards the real handle decides.
  void abort(const std::string& reason) override {
    std::unique_lock lock(mutex_);
    if (inner_) {
      const std::shared_ptr<PendingOp> inner = inner_;
      lock.unlock();
      inner->abort(reason);
    } else {
      error_ = reason;
      lock.unlock();
      changed_.notify_all();
    }
  }
  // Called by the connecting thread, once: started() or failed().
  void started(std::shared_ptr<PendingOp> inner) {
    {
      std::lock_guard lock(mutex_);
      inner_ = std::move(inner);
    }
    changed_.notify_all();
  }
  void failed(const std::string& reason) {
    {
      std::lock_guard lock(mutex_);
      error_ = reason;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<PendingOp> inner_;  // guarded by mutex_
  std::string error_;                 // guarded by mutex_
};

// Shared with the connecting thread, which may outlive the backend: a connect that never succeeds cannot be stopped.
struct Connection {
  struct Queued {
    std::vector<Op> ops;
    std::vector<std::shared_ptr<QueuedOp>> handles;
  };
  std::mutex mutex;
  std::unique_ptr<Backend> backend;  // guarded by mutex; set once, when the queue has been run
  std::deque<Queued> queue;          // guarded by mutex
  std::string error;                 // guarded by mutex
};

// Starts one entry of the queue and connects its handles to the backend's.
void start_queued(Backend& backend, Connection::Queued& queued) {
  try {
    const auto inner = queued.ops.size() == 1 && !is_point_to_point(queued.ops[0].kind)
                           ? std::vector{backend.start(queued.ops[0])}
                           : backend.start_batch(queued.ops);
    for (size_t i = 0; i < inner.size(); ++i) queued.handles[i]->started(inner[i]);
  } catch (const std::exception& error) {
    for (const auto& handle : queued.handles) handle->failed(error.what());
  }
}

// The body of the connecting thread.
void connect_and_drain(const std::shared_ptr<Connection>& connection,
                       const std::function<std::unique_ptr<Backend>()>& connect) {
  std::unique_ptr<Backend> backend;
  std::string error;
  try {
    backend = connect();
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  std::lock_guard lock(connection->mutex);
  connection->error = error;
  for (auto& queued : connection->queue) {
    if (backend) {
      start_queued(*backend, queued);
    } else {
      for (const auto& handle : queued.handles) handle->failed(error);
    }
  }
  connection->queue.clear();
  // Last, still under the lock: from here on start() takes the direct way.
  connection->backend = std::move(backend);
}

// shutdown() does nothing: Gloo has nothing outside the process to free.
class LazyBackend : public Backend {
 public:
  explicit LazyBackend(std::function<std::unique_ptr<Backend>()> connect)
      : connection_(std::make_shared<Connection>()) {
    std::thread([connection = connection_, connect = std::move(connect)] {
      connect_and_drain(connection, connect);
    }).detach();
  }

  std::shared_ptr<PendingOp> start(const Op& op) override {
    std::lock_guard lock(connection_->mutex);
    if (connection_->backend) return connection_->backend->start(op);
    return enqueue({op})[0];
  }

  std::vector<std::shared_ptr<PendingOp>> start_batch(const std::vector<Op>& ops) override {
    std::lock_guard lock(connection_->mutex);
    if (connection_->backend) return connection_->backend->start_batch(ops);
    return enqueue(ops);
  }

 private:
  // Requires connection_->mutex.
  std::vector<std::shared_ptr<PendingOp>> enqueue(std::vector<Op> ops) {
    check<CommError>(connection_->error.empty(), "{}", connection_->error);
    Connection::Queued queued;
    for (size_t i = 0; i < ops.size(); ++i) queued.handles.push_back(std::make_shared<QueuedOp>());
    queued.ops = std::move(ops);
    connection_->queue.push_back(queued);
    return {queued.handles.begin(), queued.handles.end()};
  }

  const std::shared_ptr<Connection> connection_;
};

}  // namespace

std::unique_ptr<Backend> make_lazy_backend(std::function<std::unique_ptr<Backend>()> connect) {
  return std::make_unique<LazyBackend>(std::move(connect));
}

}  // namespace megalith::comm
