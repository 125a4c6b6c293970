// RestartLink: the line between a launcher and a rank whose process outlives the failure of another rank.
//
//   rank       unwinds, says "parked", and waits
//   launcher   ends or loses the others, starts them again, says where the store of the next start is
//   rank       connects there, as if it had just been started
//
// Messages are whole packets of a socket pair that is made before the rank is forked.
#pragma once

#include <optional>

#include "megalith/comm/store/restarts.h"

namespace megalith::comm {

// One end of the line. Not copyable; closed with its owner.
class RestartLink {
 public:
  RestartLink() = default;
  ~RestartLink();
  RestartLink(RestartLink&& other) noexcept;
  RestartLink& operator=(RestartLink&& other) noexcept;

  // Returns both ends, the launcher's first. Throws CommError when the system has no descriptors left.
  static std::pair<RestartLink, RestartLink> make();

  // The descriptor to poll; -1 if there is no line.
  int descriptor() const { return descriptor_; }

  // Launcher: returns whether the rank has said that it is parked. Does not wait.
  bool take_parked() const;
  // Launcher: sends a parked rank into the next start, whose store is at `port` of this machine.
  void send_next_start(int port, const RankLaunch& launch) const;

  // Rank: parks until the next start, puts its port into MASTER_PORT and what has changed into `launch`. Returns false
  // if there is none and the process is to end.
  bool park(RankLaunch& launch) const;

 private:
  explicit RestartLink(int descriptor) : descriptor_(descriptor) {}

  int descriptor_ = -1;
};

}  // namespace megalith::comm
