#include "megalith/comm/launch/restart_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::comm {

namespace {

using nlohmann::json;

constexpr const char* kParked = "parked";
constexpr size_t kLongestMessage = 1 << 18;  // thousands of earlier starts

// Returns the next packet; empty at the end of the line and, with MSG_DONTWAIT, if there is none.
std::string receive(int descriptor, int flags) {
  std::vector<char> packet(kLongestMessage);
  ssize_t bytes = 0;
  do bytes = ::recv(descriptor, packet.data(), packet.size(), flags);
  while (bytes < 0 && errno == EINTR);
  return bytes <= 0 ? "" : std::string(packet.data(), static_cast<size_t>(bytes));
}

// A peer that is gone is noticed by its end, not here.
void send_packet(int descriptor, const std::string& text) {
  while (::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

json to_json(const Attempt& attempt) {
  return {attempt.first_step, attempt.last_step, attempt.step_seconds, attempt.detect_seconds};
}

Attempt attempt_from(const json& fields) {
  return {fields.at(0).get<int64_t>(), fields.at(1).get<int64_t>(), fields.at(2).get<double>(),
          fields.at(3).get<double>()};
}

}  // namespace

RestartLink::~RestartLink() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RestartLink::RestartLink(RestartLink&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

RestartLink& RestartLink::operator=(RestartLink&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

std::pair<RestartLink, RestartLink> RestartLink::make() {
  int ends[2] = {-1, -1};
  check<CommError>(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0,
                   "cannot connect the launcher with a rank: {}", std::strerror(errno));
  return {RestartLink(ends[0]), RestartLink(ends[1])};
}

bool RestartLink::take_parked() const { return receive(descriptor_, MSG_DONTWAIT) == kParked; }

void RestartLink::send_next_start(int port, const RankLaunch& launch) const {
  json earlier = json::array();
  for (const Attempt& attempt : launch.earlier) earlier.push_back(to_json(attempt));
  send_packet(descriptor_,
              json{{"port", port}, {"restarts", launch.restarts}, {"failed_ns", launch.failed_ns}, {"earlier", earlier}}
                  .dump());
}

bool RestartLink::park(RankLaunch& launch) const {
  send_packet(descriptor_, kParked);
  const std::string text = receive(descriptor_, 0);
  if (text.empty()) return false;
  const json next = json::parse(text);
  ::setenv("MASTER_PORT", std::to_string(next.at("port").get<int>()).c_str(), 1);
  launch.restarts = next.at("restarts").get<int>();
  launch.failed_ns = next.at("failed_ns").get<int64_t>();
  launch.earlier.clear();
  for (const json& attempt : next.at("earlier")) launch.earlier.push_back(attempt_from(attempt));
  return true;
}

}  // namespace megalith::comm
