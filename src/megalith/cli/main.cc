#include "megalith/base/allocator.h"
#include "megalith/cli/command.h"

int main(int argc, char** argv) {
  megalith::keep_freed_memory();
  const std::vector<std::string> words(argv + 1, argv + argc);
  return megalith::cli::run(words);
}
