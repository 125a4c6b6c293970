// The format and the rules are Megatron's, so that its tools and its files can be used: events are lines of key=value
// pairs, and a step is skipped when the same rank has rejected it reproducibly in two starts.
#include "megalith/train/faults/rejection_tracker.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::train {

namespace {

// Returns the value of `key=` in a line, up to the next space.
std::optional<std::string> field(const std::string& line, const std::string& key) {
  const size_t at = line.find(" " + key + "=");
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + key.size() + 2;
  return line.substr(begin, line.find(' ', begin) - begin);
}

// With reruns disabled nothing was compared; such an event counts as reproducible, as in the reference.
bool is_reproducible(const std::string& status) {
  constexpr std::array kStatuses{"rerun_disabled", "first_rerun_reproducible", "second_rerun_reproducible"};
  return std::ranges::find(kStatuses, status) != kStatuses.end();
}

}  // namespace

RejectionTracker::RejectionTracker(std::filesystem::path file, ResultPlace place, std::string job)
    : file_(std::move(file)), place_(std::move(place)), job_(std::move(job)) {
  const int fd = ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  check<ConfigError>(fd >= 0,
                     "result_rejected_tracker_filename {} cannot be appended to: {}; choose a file in a folder"
                     " that exists and is writable by this user",
                     file_.string(), std::strerror(errno));
  ::close(fd);
}

// O_APPEND and a single write keep lines of several ranks from mixing.
void RejectionTracker::append(int64_t iteration, std::string_view status, double result,
                              const std::string& message) const {
  const std::string line = fmt::format(
      "ts={:%Y-%m-%dT%H:%M:%S} node={} device={} jobID={} rank={} iteration={} status={} result={} message='{}'\n",
      fmt::gmtime(std::time(nullptr)), place_.node, place_.device, job_, place_.rank, iteration, status, result,
      message);
  const int fd = ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  const bool written = fd >= 0 && ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const std::string reason = std::strerror(errno);
  if (fd >= 0) ::close(fd);
  check<DataError>(written, "cannot append to result_rejected_tracker_filename {}: {}", file_.string(), reason);
}

std::vector<int64_t> iterations_to_skip(const std::filesystem::path& file) {
  std::map<std::pair<int64_t, std::string>, int> events;                      // by iteration and rank
  std::map<std::pair<int64_t, std::string>, std::set<std::string>> ranks_of;  // by iteration and job
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const auto iteration = parse_int(field(line, "iteration").value_or(""));
    const auto rank = field(line, "rank"), job = field(line, "jobID"), status = field(line, "status");
    if (!iteration || !rank || !job || !status || !is_reproducible(*status)) continue;
    ++events[{*iteration, *rank}];
    ranks_of[{*iteration, *job}].insert(*rank);
  }
  // Steps that several ranks of one job rejected are not skipped.
  std::set<int64_t> several;
  for (const auto& [key, ranks] : ranks_of)
    if (ranks.size() > 1) several.insert(key.first);
  std::set<int64_t> skipped;
  for (const auto& [key, count] : events)
    if (count >= 2 && !several.contains(key.first)) skipped.insert(key.first);
  return {skipped.begin(), skipped.end()};
}

}  // namespace megalith::train
