#include "megalith/cli/command.h"
#include "megalith/run/run.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  return megalith::run::run_program([&] { return megalith::cli::run(words); });
}
