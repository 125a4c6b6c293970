// Uses a module without libtorch in its headers, so that this compiles in a second.
#include <iostream>

#include "megalith/base/text.h"

int main() {
  const auto parts = megalith::split("tp,pp,dp", ',');
  std::cout << megalith::list_in_words(parts) << "\n";
}
