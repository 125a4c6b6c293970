// Questions about this machine's network that come up before and besides the store: routes and listeners.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace megalith::comm {

// The way by which this machine's packets to a host leave: {"10.0.0.7", "eth0"}.
struct Route {
  std::string address;      // source address of the packets
  std::string interface;    // empty if the address belongs to none
  bool stays_here = false;  // the host is this machine
};
// Returns std::nullopt when the host name does not resolve. Sends nothing.
std::optional<Route> route_to(const std::string& host, int port);

// Opens a TCP connection to the host and closes it again, within `limit` per address. Returns 0, or the errno of the
// last address: ECONNREFUSED means that the machine is up but nobody listens there.
int probe_listener(const std::string& host, int port, std::chrono::milliseconds limit);

// Waits until somebody listens there. Returns an empty text, or the reason why nobody does.
std::string wait_for_listener(const std::string& host, int port, std::chrono::milliseconds timeout);

}  // namespace megalith::comm
