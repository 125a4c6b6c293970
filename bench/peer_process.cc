// A peer is a Python program that reads one command per line and answers with one line of JSON. It stays alive between
// commands, so that imports and compilation are not part of what is timed.
#include "bench/peer_process.h"

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace megalith::bench {

PeerProcess::PeerProcess(const std::vector<std::string>& command) {
  int in[2], out[2];
  if (::pipe(in) != 0 || ::pipe(out) != 0) throw std::runtime_error("no pipe for the peer");
  pid_ = ::fork();
  // The child: its ends of the pipes become stdin and stdout; stderr stays ours, so that errors are seen.
  if (pid_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    for (const int fd : {in[0], in[1], out[0], out[1]}) ::close(fd);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
    // The shell's code for a program that is not found.
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  to_ = ::fdopen(in[1], "w");
  from_ = ::fdopen(out[0], "r");
  std::signal(SIGPIPE, SIG_IGN);  // a peer that has ended is noticed by the missing answer
}

PeerProcess::~PeerProcess() {
  std::fclose(to_);
  std::fclose(from_);
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

nlohmann::json PeerProcess::ask(const std::string& line) {
  std::fputs((line + "\n").c_str(), to_);
  std::fflush(to_);
  std::string answer;
  for (int c = std::fgetc(from_); c != '\n'; c = std::fgetc(from_)) {
    if (c == EOF) throw std::runtime_error("the peer ended instead of answering \"" + line + "\"");
    answer += static_cast<char>(c);
  }
  return nlohmann::json::parse(answer);
}

std::string peer_python() {
  const char* python = std::getenv("MEGALITH_PYTHON");
  return python ? python : "python3";
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

}  // namespace megalith::bench
