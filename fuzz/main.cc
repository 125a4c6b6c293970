// The entry point of libFuzzer; MEGALITH_FUZZ_ENTRY is one of entries.h.
#include <cstddef>
#include <cstdint>

#include "fuzz/entries.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  megalith::fuzz::MEGALITH_FUZZ_ENTRY({reinterpret_cast<const char*>(data), size});
  return 0;
}
