// A Python peer that answers commands, one JSON line each, so that its measurements alternate with ours.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace megalith::bench {

// One peer, alive until the object goes. Commands and answers alternate, so one thread uses it.
class PeerProcess {
 public:
  // Throws std::runtime_error when it cannot be started.
  explicit PeerProcess(const std::vector<std::string>& command);
  ~PeerProcess();  // ends it
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Sends a line and waits for the answer. Throws when the peer has ended.
  nlohmann::json ask(const std::string& line);

 private:
  int pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

// Returns the Python that runs peers: MEGALITH_PYTHON, or python3.
std::string peer_python();
// Returns the median.
double median(std::vector<double> values);

}  // namespace megalith::bench
