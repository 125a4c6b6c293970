#include "megalith/cli/command.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  return megalith::cli::run(words);
}
