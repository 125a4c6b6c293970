#include "tests/support/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

extern char** environ;

namespace megalith::testing {

namespace {

constexpr const char* kMarkName = "MEGALITH_TEST_MARK";

std::vector<std::string> child_environment(const std::map<std::string, std::string>& extra, const std::string& mark) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t at = text.find('=');
    variables[text.substr(0, at)] = text.substr(at + 1);
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    variables.erase(name);
  variables[kMarkName] = mark;
  for (const auto& [name, value] : extra)
    if (value.empty())
      variables.erase(name);
    else
      variables[name] = value;
  std::vector<std::string> list;
  for (const auto& [name, value] : variables) list.push_back(name + "=" + value);
  return list;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

std::vector<pid_t> marked_processes(const std::string& mark) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    if (text.str().find(std::string(kMarkName) + "=" + mark) != std::string::npos) found.push_back(pid);
  }
  return found;
}

bool read_some(int& fd, std::string& text) {
  char buffer[1 << 14];
  const ssize_t n = read(fd, buffer, sizeof buffer);
  if (n > 0) text.append(buffer, static_cast<size_t>(n));
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    close(fd);
    fd = -1;
  }
  return n > 0;
}

}  // namespace

Subprocess::Subprocess(const std::vector<std::string>& command, const std::map<std::string, std::string>& env)
    : started_(std::chrono::steady_clock::now()) {
  static std::atomic<int> count = 0;
  mark_ = std::to_string(getpid()) + "." + std::to_string(++count);
  std::vector<std::string> words = command;
  std::vector<std::string> variables = child_environment(env, mark_);
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) std::abort();
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    execvpe(words[0].c_str(), pointers(words).data(), pointers(variables).data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  for (int fd : {out_fd_, err_fd_}) fcntl(fd, F_SETFL, O_NONBLOCK);
}

Subprocess::~Subprocess() {
  if (pid_ > 0) finish(std::chrono::milliseconds(0));
}

void Subprocess::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

bool Subprocess::running() {
  pump(std::chrono::milliseconds(0));
  siginfo_t ended{};
  return pid_ > 0 && waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0;
}

bool Subprocess::pump(std::chrono::milliseconds time) {
  pollfd fds[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  poll(fds, 2, static_cast<int>(time.count()));
  if (out_fd_ >= 0)
    while (out_fd_ >= 0 && read_some(out_fd_, result_.out)) {
    }
  if (err_fd_ >= 0)
    while (err_fd_ >= 0 && read_some(err_fd_, result_.err)) {
    }
  return out_fd_ >= 0 || err_fd_ >= 0;
}

bool Subprocess::wait_for_text(const std::string& text, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  bool open = true;
  while (true) {
    if (result_.out.find(text) != std::string::npos || result_.err.find(text) != std::string::npos) return true;
    if (!open || std::chrono::steady_clock::now() >= deadline) return false;
    open = pump(std::chrono::milliseconds(20));
  }
}

ProcessResult Subprocess::finish(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= deadline) {
      result_.timed_out = true;
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      break;
    }
    pump(std::chrono::milliseconds(20));
  }
  pid_ = -1;
  result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  // Descendants of a process that was killed need a moment to go, too.
  for (int i = 0; i < 20 && !marked_processes(mark_).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  for (pid_t pid : marked_processes(mark_)) {
    ++result_.left_behind;
    kill(pid, SIGKILL);
  }
  while (pump(std::chrono::milliseconds(20)) && std::chrono::steady_clock::now() < deadline + std::chrono::seconds(1)) {
  }
  for (int* fd : {&out_fd_, &err_fd_})
    if (*fd >= 0) close(std::exchange(*fd, -1));
  return result_;
}

ProcessResult run_process(const std::vector<std::string>& command, const std::map<std::string, std::string>& env,
                          std::chrono::milliseconds limit) {
  return Subprocess(command, env).finish(limit);
}

std::vector<pid_t> children_of(pid_t pid) {
  const std::string self = std::to_string(pid);
  std::ifstream children("/proc/" + self + "/task/" + self + "/children");
  std::vector<pid_t> found;
  for (pid_t child = 0; children >> child;) found.push_back(child);
  return found;
}

}  // namespace megalith::testing
