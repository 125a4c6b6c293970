// curl reads everything from its stdin, as a configuration file, and says on stderr what went wrong. The dashboard
// blocks signals in its threads; curl gets none of them blocked.
#include "megalith/observe/http/https_program.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "megalith/base/env.h"
#include "megalith/base/text.h"

namespace megalith::observe {

namespace {

constexpr const char* kProgram = "curl";

// In a quoted value of curl's configuration, a backslash begins an escape.
std::string quoted(const std::string& text) {
  std::string safe = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') safe += '\\';
    safe += c;
  }
  return safe + "\"";
}

std::string configuration(const std::string& url, const std::string& body, std::chrono::milliseconds patience) {
  return fmt::format(
      "url = {}\nheader = \"Content-Type: application/json\"\ndata-raw = {}\nmax-time = {:.3f}\n"
      "silent\nshow-error\nfail\noutput = \"/dev/null\"\n",
      quoted(url), quoted(body), std::chrono::duration<double>(patience).count());
}

// Starts curl with `input` as its stdin and `errors` as its stderr; returns 0 or the errno.
int start_curl(int input, int errors, pid_t& pid) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, errors, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::string program = kProgram, no_file = "--disable", config = "--config", from_stdin = "-";
  std::array<char*, 5> words{program.data(), no_file.data(), config.data(), from_stdin.data(), nullptr};
  const int error = ::posix_spawnp(&pid, kProgram, &files, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

// Reads to the end of the stream, which comes with the end of the process, and keeps the beginning.
std::string text_of(int stream) {
  constexpr size_t kMostBytes = 512;
  std::string text;
  std::array<char, 512> bytes;
  while (true) {
    const ssize_t got = ::read(stream, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(bytes.data(), std::min(static_cast<size_t>(got), kMostBytes - text.size()));
  }
}

}  // namespace

bool has_https_program() {
  for (const std::string& folder : split(env_string("PATH").value_or(""), ':'))
    if (!folder.empty() && ::access((folder + "/" + kProgram).c_str(), X_OK) == 0) return true;
  return false;
}

// Sockets in place of pipes: a curl that ends early must not raise SIGPIPE here.
std::string post_https(const std::string& url, const std::string& body, std::chrono::milliseconds patience) {
  std::array<int, 2> input{-1, -1}, errors{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, input.data()) != 0 ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, errors.data()) != 0) {
    for (const int each : input)
      if (each >= 0) ::close(each);
    return fmt::format("{} cannot be started: {}", kProgram, std::strerror(errno));
  }
  pid_t pid = -1;
  const int error = start_curl(input[1], errors[1], pid);
  ::close(input[1]);
  ::close(errors[1]);
  std::string said;
  int status = 0;
  if (error == 0) {
    const std::string text = configuration(url, body, patience);
    for (size_t done = 0; done < text.size();) {
      const ssize_t put = ::send(input[0], text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) break;  // curl has ended, and says why
      done += static_cast<size_t>(put);
    }
    ::shutdown(input[0], SHUT_WR);
    said = text_of(errors[0]);
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  ::close(input[0]);
  ::close(errors[0]);
  if (error != 0) return fmt::format("{} cannot be started: {}", kProgram, std::strerror(error));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  return said.empty() ? fmt::format("{} ended with status {}", kProgram, status) : first_line(said);
}

}  // namespace megalith::observe
