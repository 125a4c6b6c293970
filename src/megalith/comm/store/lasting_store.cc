// Every request goes through ask(): use the current connection; if the network fails, drop it, connect once more and
// repeat the request if that is safe. Repeating is safe for everything that has the same effect twice: reads, waits,
// `set` and `compareSet` of the same value. A connection is replaced under the lock, but used outside it, so one
// request that waits does not keep others from reconnecting.
#include "megalith/comm/store/lasting_store.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cerrno>
#include <cstring>
#include <utility>

#include "megalith/comm/store/network.h"

namespace megalith::comm {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProbeLimit{2000};      // to open a TCP connection
constexpr milliseconds kHandshakeLimit{3000};  // for the store to answer over it
constexpr milliseconds kRefusalLimit{10000};   // how long another machine may refuse connections

}  // namespace

LastingStore::LastingStore(std::string host, int port, c10::intrusive_ptr<c10d::Store> first)
    : c10d::Store(first->getTimeout()), host_(std::move(host)), port_(port), first_(std::move(first)) {
  current_ = first_;
}

LastingStore::LastingStore(std::string host, int port, milliseconds timeout)
    : c10d::Store(timeout), host_(std::move(host)), port_(port) {
  connected();
}

// A connection of its own: a thread that waits over this one would otherwise block the other.
c10::intrusive_ptr<c10d::Store> LastingStore::clone() {
  return c10::make_intrusive<LastingStore>(host_, port_, timeout_);
}

LastingStore::Connection LastingStore::connected() {
  std::lock_guard lock(mutex_);
  if (!current_) current_ = connect_again();
  return current_;
}

// Probes first, to tell a refused connection from silence. A refused one means that the process
// has ended; another machine gets some time, in case a proxy answered. Requires mutex_.
LastingStore::Connection LastingStore::connect_again() {
  const int error = probe_listener(host_, port_, kProbeLimit);
  const auto now = std::chrono::steady_clock::now();
  if (error != ECONNREFUSED) {
    refused_since_.reset();
  } else {
    if (!refused_since_) refused_since_ = now;
    const auto route = route_to(host_, port_);
    if ((route && route->stays_here) || now - *refused_since_ >= kRefusalLimit)
      throw StoreEnded(fmt::format("the process that served the store at {}:{} has ended", host_, port_));
  }
  if (error != 0)
    C10_THROW_ERROR(DistNetworkError,
                    fmt::format("the store at {}:{} cannot be reached: {}", host_, port_, std::strerror(error)));
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port_);
  options.waitWorkers = false;
  options.timeout = kHandshakeLimit;
  const Connection made = c10::make_intrusive<c10d::TCPStore>(host_, options);
  made->setTimeout(timeout_);
  return made;
}

// Another thread may have replaced the connection already.
void LastingStore::drop(const Connection& broken) {
  std::lock_guard lock(mutex_);
  if (current_ == broken) current_.reset();
}

// At most one repetition: if the new connection breaks as well, the caller's patience decides, not this loop.
template <class Request>
auto LastingStore::ask(bool repeatable, const Request& request) {
  const Connection connection = connected();
  try {
    return request(*connection);
  } catch (const c10::DistNetworkError&) {
    drop(connection);
    if (!repeatable) throw;
  }
  const Connection reconnected = connected();
  try {
    return request(*reconnected);
  } catch (const c10::DistNetworkError&) {
    drop(reconnected);
    throw;
  }
}

void LastingStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask(true, [&](c10d::Store& store) {
    store.set(key, value);
    store.check({key});  // requests are answered in order, so the value has arrived as well
  });
}

std::vector<uint8_t> LastingStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                              const std::vector<uint8_t>& desired) {
  return ask(true, [&](c10d::Store& store) { return store.compareSet(key, expected, desired); });
}

std::vector<uint8_t> LastingStore::get(const std::string& key) {
  return ask(true, [&](c10d::Store& store) { return store.get(key); });
}

// Adding 0 only reads, so it may be repeated.
int64_t LastingStore::add(const std::string& key, int64_t value) {
  return ask(value == 0, [&](c10d::Store& store) { return store.add(key, value); });
}

bool LastingStore::deleteKey(const std::string& key) {
  return ask(true, [&](c10d::Store& store) { return store.deleteKey(key); });
}

bool LastingStore::check(const std::vector<std::string>& keys) {
  return ask(true, [&](c10d::Store& store) { return store.check(keys); });
}

int64_t LastingStore::getNumKeys() {
  return ask(true, [](c10d::Store& store) { return store.getNumKeys(); });
}

void LastingStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void LastingStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  ask(true, [&](c10d::Store& store) { store.wait(keys, timeout); });
}

// Kept for connections to come, too.
void LastingStore::setTimeout(const milliseconds& timeout) {
  std::lock_guard lock(mutex_);
  timeout_ = timeout;
  if (current_) current_->setTimeout(timeout);
}

void LastingStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  ask(false, [&](c10d::Store& store) { store.append(key, value); });
}

std::vector<std::vector<uint8_t>> LastingStore::multiGet(const std::vector<std::string>& keys) {
  return ask(true, [&](c10d::Store& store) { return store.multiGet(keys); });
}

void LastingStore::multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) {
  ask(true, [&](c10d::Store& store) {
    store.multiSet(keys, values);
    store.check(keys);
  });
}

// Silence is measured from the first failure after an answer, not from the last answer.
bool StorePatience::is_gone_after(const std::exception& error) {
  if (dynamic_cast<const StoreEnded*>(&error) != nullptr) return true;
  const auto now = std::chrono::steady_clock::now();
  if (!silent_since_) silent_since_ = now;
  return now - *silent_since_ >= limit_;
}

}  // namespace megalith::comm
