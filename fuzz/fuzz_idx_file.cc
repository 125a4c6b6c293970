#include <algorithm>
#include <span>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/indexed/index_file.h"

namespace megalith::fuzz {

namespace {

// Checks the promises of check_index by counting again.
void check_promises(const data::IndexView& index, uint64_t bin_bytes) {
  uint64_t tokens = 0;
  for (size_t i = 0; i < index.lengths.size(); ++i) {
    check(index.lengths[i] >= 0, "a negative length");
    tokens += static_cast<uint64_t>(index.lengths[i]);
  }
  check(tokens * static_cast<uint64_t>(data::token_bytes(index.type)) == bin_bytes, "another number of bytes");
  check(index.documents[0] == 0, "the first document starts elsewhere");
  for (size_t i = 1; i < index.documents.size(); ++i)
    check(index.documents[i - 1] <= index.documents[i], "documents out of order");
  check(index.documents[index.documents.size() - 1] == static_cast<int64_t>(index.lengths.size()),
        "sequences left over");
}

}  // namespace

void idx_file(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  const auto bin_bytes = static_cast<uint64_t>(parse_int(input.substr(0, line)).value_or(0));
  input.remove_prefix(std::min(line + 1, input.size()));
  try {
    const data::IndexView index = data::parse_index(std::as_bytes(std::span(input)), "fuzz.idx");
    data::check_index(index, bin_bytes, "fuzz.idx");
    check_promises(index, bin_bytes);
  } catch (const DataError& error) {
    check(std::string_view(error.what()).starts_with("fuzz.idx: byte "), "a message without the file and the byte");
  }
}

}  // namespace megalith::fuzz
