// A backend that connects on its own thread, so that the first operation of a group never blocks the caller.
//
// Why: connecting Gloo needs all members. If the first send on a group blocked until every member had used that group,
// two ranks that first use two groups in opposite order would wait for each other forever. It also puts the connection
// time under the operation's own limit and error message.
#pragma once

#include <functional>
#include <memory>

#include "megalith/comm/op/backend.h"

namespace megalith::comm {

// `connect` may block and may throw; it runs once, on another thread. Operations started before it has finished are
// queued and run in order.
std::unique_ptr<Backend> make_lazy_backend(std::function<std::unique_ptr<Backend>()> connect);

}  // namespace megalith::comm
