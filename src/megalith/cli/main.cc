#include <cstdio>
#include <cstdlib>

#include "megalith/base/allocator.h"
#include "megalith/cli/command.h"
#include "megalith/comm/world.h"

int main(int argc, char** argv) {
  megalith::keep_freed_memory();
  const std::vector<std::string> words(argv + 1, argv + argc);
  const int code = megalith::cli::run(words);
  // Threads of libtorch outlive main. One of them that ends while the exit handlers of the CUDA driver unload its
  // compiler crashes the process, after the run has done all its work: so there are no exit handlers.
  if (megalith::comm::nccl_available()) {
    std::fflush(nullptr);
    std::_Exit(code);
  }
  return code;
}
